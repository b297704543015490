// c10d asks the name server for the name of every address that it mentions in a log line, whether the line is written or not. Where no
// name server answers, each question costs five seconds of a rendezvous. Addresses are good enough: this takes the place of
// the C library's function and asks nobody.
#include <dlfcn.h>
#include <netdb.h>

extern "C" int getnameinfo(const sockaddr *address, socklen_t length, char *host, socklen_t host_length, char *service,
                           socklen_t service_length, int flags) {
  using Function = decltype(&getnameinfo);
  static Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getnameinfo"));
  return next(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST | NI_NUMERICSERV);
}
