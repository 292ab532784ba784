//! Lists of the admin API, which come in pages.

use serde_json::Value;

use crate::admin_client::Client;
use crate::exit::Failure;

/// The most items of a page.
pub const MOST: usize = 1000;

/// Part of a list.
#[derive(Debug)]
pub struct Page {
    /// What is in it.
    pub items: Vec<Value>,
    /// Where the next one begins.
    pub next: Option<String>,
    /// What else the last answer says.
    pub beside: Value,
}

/// One page; `parameters` without `limit` and `cursor`.
///
/// # Errors
/// When the gateway cannot be reached or refuses.
pub async fn page(
    client: &Client,
    path: &str,
    parameters: &[(&str, String)],
    limit: usize,
    cursor: Option<&str>,
) -> Result<Page, Failure> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters).append_pair("limit", &limit.to_string());
    if let Some(cursor) = cursor {
        query.append_pair("cursor", cursor);
    }
    let mut beside = client.get(&format!("{path}?{}", query.finish())).await?;
    let next = beside["next_cursor"].as_str().map(ToOwned::to_owned);
    match beside["items"].take() {
        Value::Array(items) => Ok(Page { items, next, beside }),
        _ => Err(Failure::failed("the gateway's answer is not understood: it has no items")),
    }
}

/// Pages until there are enough items, and the cursor of the page after them.
///
/// # Errors
/// When the gateway cannot be reached or refuses.
pub async fn all(
    client: &Client,
    path: &str,
    parameters: &[(&str, String)],
    limit: u32,
) -> Result<Page, Failure> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let some = MOST.min(limit - items.len());
        let more = page(client, path, parameters, some, cursor.as_deref()).await?;
        // a page that is empty and still has a next one would go on for ever
        let ended = more.items.is_empty() || more.next.is_none();
        items.extend(more.items);
        if ended || items.len() >= limit {
            items.truncate(limit);
            return Ok(Page { items, next: more.next, beside: more.beside });
        }
        cursor = more.next;
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use serde_json::json;

    use super::*;
    use crate::admin_client::tests::canned;

    #[tokio::test]
    async fn pages_are_followed_until_there_are_enough() {
        let some = |n: usize| vec![json!({}); n];
        let (client, mut server) = canned(vec![
            json!({ "items": some(1000), "next_cursor": "a&b" }),
            json!({ "items": some(200), "next_cursor": "c", "depth": [] }),
        ])
        .await;
        let parameters = [("tenant", "t".to_owned())];
        let Page { items, next, beside } = all(&client, "/list", &parameters, 1200).await.unwrap();
        assert_eq!((items.len(), next.as_deref(), &beside["depth"]), (1200, Some("c"), &json!([])));
        let seen = server.join_next().await.unwrap().unwrap();
        assert!(seen[0].starts_with("GET /list?tenant=t&limit=1000 HTTP/1.1\r\n"), "{}", seen[0]);
        assert!(seen[1].contains("&limit=200&cursor=a%26b "), "{}", seen[1]);

        let (client, _server) = canned(vec![json!({ "items": some(3), "next_cursor": null })]).await;
        assert_eq!(all(&client, "/list", &[], 100).await.unwrap().items.len(), 3);
    }
}
