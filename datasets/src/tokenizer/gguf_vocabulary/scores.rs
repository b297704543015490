//! Merges as scores, and back.
//!
//! Byte-pair encoding merges the pair that comes first in a list of merges. llama.cpp's program for
//! `SentencePiece` merges the two neighbours whose union is a token with the highest score, whatever they
//! are. The two agree if every way to make a token of two others is a merge, and the merges that make one
//! token come one after the other. The merges that transformers makes of a `SentencePiece` model are so
//! (`SentencePieceExtractor.extract`).

use std::collections::{HashMap, HashSet};

/// The longest token whose splits are tried, in bytes. `SentencePiece` has at most 64.
const LONGEST: usize = 512;

/// Why merges cannot be scores.
type Refused = String;

/// The score of each token that merges make: minus the number of tokens that are made before it. Tokens that
/// no merge makes have the score 0, and none of their splits are tokens.
pub(super) fn of_merges(
    merges: &[[String; 2]],
    ids: &HashMap<String, u32>,
    tokens: usize,
) -> Result<Vec<f32>, Refused> {
    let mut scores = vec![None; tokens];
    let (mut made, mut last) = (0u32, None);
    for [left, right] in merges {
        let whole = format!("{left}{right}");
        let Some(&id) = ids.get(&whole) else {
            return Err(format!("the merge of {left:?} and {right:?} makes no token"));
        };
        if last == Some(id) {
            continue;
        }
        if scores[id as usize].is_some() {
            return Err(format!("the merges that make {whole:?} do not follow one another"));
        }
        scores[id as usize] = Some(-(made as f32));
        (made, last) = (made + 1, Some(id));
    }

    let known: HashSet<(&str, &str)> =
        merges.iter().map(|[left, right]| (left.as_str(), right.as_str())).collect();
    for token in ids.keys() {
        if token.len() > LONGEST {
            return Err(format!("a token has {} bytes, more than {LONGEST}", token.len()));
        }
        if let Some((left, right)) = splits(token, ids).find(|pair| !known.contains(pair)) {
            return Err(format!("{left:?} and {right:?} make the token {token:?} and are no merge"));
        }
    }
    Ok(scores.into_iter().map(|score| score.unwrap_or(0.0)).collect())
}

/// The most bytes of memory that the merges of a file may take. A vocabulary of 256,000 tokens takes 40 MB.
const MERGE_BYTES: usize = 256 << 20;

/// The merges that the scores of tokens mean: for each token its splits, the token with the highest score
/// first.
pub(super) fn to_merges(
    tokens: &[String],
    scores: &[f64],
    ids: &HashMap<String, u32>,
) -> Result<Vec<[String; 2]>, Refused> {
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let (mut merges, mut bytes) = (Vec::new(), 0);
    // The text of an id that no token has is made by no merge.
    for id in order.into_iter().filter(|&id| ids.get(&tokens[id]) == Some(&(id as u32))) {
        let token = &tokens[id];
        if token.len() > LONGEST {
            return Err(format!("token {id} has {} bytes, more than {LONGEST}", token.len()));
        }
        let mut own: Vec<(&str, &str)> = splits(token, ids).collect();
        bytes += own.len() * (token.len() + size_of::<[String; 2]>());
        if bytes > MERGE_BYTES {
            return Err(format!(
                "its tokens have so many splits that their merges take more than {MERGE_BYTES} bytes"
            ));
        }
        own.sort_by_key(|(left, right)| (ids[*left], ids[*right]));
        merges.extend(own.into_iter().map(|(left, right)| [left.to_owned(), right.to_owned()]));
    }
    Ok(merges)
}

/// The ways to make a token of two others.
fn splits<'a>(
    token: &'a str,
    ids: &'a HashMap<String, u32>,
) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
    let halves = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
    halves.filter(|(left, right)| ids.contains_key(*left) && ids.contains_key(*right))
}
