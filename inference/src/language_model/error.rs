//! Why a model of this process stops answering.

/// What ends the answers before the last request.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// The model failed.
    #[error(transparent)]
    Model(#[from] crate::Error),
    /// The caller takes no further answer.
    #[error(transparent)]
    Caller(#[from] eval::Error),
}

impl AnswerError {
    /// The error that an evaluation gets from the model `name`.
    pub(super) fn of_model(self, name: &str) -> eval::Error {
        match self {
            Self::Model(error) => eval::Error::Model { name: name.to_owned(), source: error.into() },
            Self::Caller(error) => error,
        }
    }
}
