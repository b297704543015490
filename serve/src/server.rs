//! The router, what every request passes on its way, and the start and end of the server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, OriginalUri, Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::api::{chat, completions, models, pooling, status, tokens};
use crate::auth::{Caller, is_local_host, is_origin_of};
use crate::error::{ApiError, Error};
use crate::metrics::StatusLabel;
use crate::state::State;

/// What the chat page may load: its own files, and nothing of another origin.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The most headers of a request.
const LARGEST_HEADERS: usize = 64;

/// How long the last answers may take once requests were ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The paths of the service.
pub(crate) fn router(state: Arc<State>) -> Router {
    let with_key = Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(pooling::embed))
        .route("/v1/score", post(pooling::score))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{model}", get(models::show))
        .route("/v1/models/{model}/reload", post(models::reload))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/metrics", get(status::metrics))
        .route("/openapi.json", get(status::description))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), check_key));

    // Whoever looks after the server asks the first two, and the page asks for the key itself.
    let without_key = Router::new()
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/", get(|| async { Html(include_str!("page/chat.html")) }))
        .route("/chat.js", get(|| async { file("text/javascript", include_str!("page/chat.js")) }))
        .route("/chat.css", get(|| async { file("text/css", include_str!("page/chat.css")) }));

    with_key
        .merge(without_key)
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .fallback(|OriginalUri(uri): OriginalUri| async move { ApiError::no_path(uri.path()) })
        .layer(DefaultBodyLimit::max(state.limits.body_bytes))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), finish_response))
        .with_state(state)
}

fn file(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, content_type)], text)
}

/// Lets a request with a right key pass, or with a local host if there are no keys.
async fn check_key(Shared(state): Shared<Arc<State>>, mut request: Request, next: Next) -> Response {
    match find_caller(&state, request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

fn find_caller(state: &State, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let caller = state.keys.caller(text(header::AUTHORIZATION)).ok_or_else(ApiError::unauthorized)?;
    if state.keys.is_empty() {
        let host = text(header::HOST).filter(|host| is_local_host(host)).ok_or_else(ApiError::host)?;
        if headers.contains_key(header::ORIGIN)
            && !text(header::ORIGIN).is_some_and(|origin| is_origin_of(origin, host))
        {
            return Err(ApiError::origin());
        }
    }
    Ok(caller)
}

/// Counts a response, and forbids what a page of this server does not need.
async fn finish_response(Shared(state): Shared<Arc<State>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let status = StatusLabel { status: response.status().as_u16() };
    state.metrics.responses.get_or_create(&status).inc();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Opens the port. Without a key, only this machine may reach it.
pub(crate) async fn bind(address: SocketAddr, has_keys: bool) -> Result<TcpListener, Error> {
    if !has_keys && !address.ip().is_loopback() {
        return Err(Error::OpenWithoutKey { address });
    }
    TcpListener::bind(address).await.map_err(|source| Error::Bind { address, source })
}

/// Answers requests until `stop`, and then those that are under way, for `drain` at most.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    stop: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) {
    let router = router(Arc::clone(&state));
    let places = Arc::new(Semaphore::new(state.limits.connections));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(state.limits.read_time).max_headers(LARGEST_HEADERS);

    // While every place is taken, new connections wait in the queue of the system.
    let connections = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accept => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // The process may have no file descriptor left: the next connection that ends frees one.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _ = connection.await;
            drop(place);
        });
    }

    state.is_stopping.store(true, Ordering::Relaxed);
    drop(listener);
    let closed = connections.shutdown();
    tokio::pin!(closed);
    if tokio::time::timeout(drain, &mut closed).await.is_err() {
        // Whoever still waits is told so: a connection without an answer looks like a fault of the network.
        state.models.iter().for_each(|model| model.end_requests());
        let _ = tokio::time::timeout(LAST_ANSWERS, closed).await;
    }
}
