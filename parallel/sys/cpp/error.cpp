#include "guard.h"
#include "shim.h"

static thread_local std::string last_error;

void shim_remember(const std::string &message) { last_error = message; }

const char *shim_last_error() { return last_error.c_str(); }

void shim_fail(const char *message) { last_error = message; }
