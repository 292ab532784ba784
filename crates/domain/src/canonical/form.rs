//! The strict streaming reader of `multipart/form-data`.
