//! The kit: escapes, numbers, and drawings whose coordinates are checked by hand.

use super::axis::{tick_label, ticks};
use super::number::{bytes, seconds};
use super::*;

#[test]
fn escapes_worked_by_hand() {
    assert_eq!(escape_html("a<b>&\"'\n\u{7}\u{9b}"), "a&lt;b&gt;&amp;&quot;&#39;\n␇\u{fffd}");
    assert_eq!(escape_markdown("1*2|3\n<b>_"), "1\\*2\\|3 ↵ &lt;b&gt;\\_");
    assert_eq!(escape_markdown("星期三"), "星期三");
    // What GitHub makes a link of without any brackets.
    assert_eq!(escape_markdown("see www.x.com, WWW.X.COM"), "see www&#46;x.com, WWW&#46;X.COM");
    assert_eq!(escape_markdown("http://x ftp://y 1.5 ww.w"), "http&#58;//x ftp&#58;//y 1.5 ww.w");
}

#[test]
fn curves_break_where_they_are_not_finite() {
    let points = vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 2.0)];
    assert_eq!(curve::raw(&points), [vec![(0.0, 1.0)], vec![(2.0, 3.0), (3.0, 2.0)]]);
    assert_eq!(curve::gaps(&points), 1);
    let svg = plane::curve("kl of ppo by step", "ppo", &points).unwrap();
    assert!(!svg.contains("NaN") && svg.contains("h0"), "{svg}");
    assert!(plane::curve("kl", "ppo", &[(0.0, f64::NAN)]).is_none());
}

#[test]
fn thinning_keeps_the_spike() {
    let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
    points[54_321].1 = 99.0;
    let line = curve::raw(&points);
    assert!(line[0].len() <= 801, "{}", line[0].len());
    assert!(line[0].contains(&(54_321.0, 99.0)));
    assert!(line[0].is_sorted_by(|a, b| a.0 <= b.0));
}

#[test]
fn smoothing_does_not_trail() {
    // A straight line is its own centred average, the ends too; an exponential average would lag behind it.
    let line: Vec<(f64, f64)> = (0..50).map(|i| (f64::from(i), 100.0 - 2.0 * f64::from(i))).collect();
    for (smooth, raw) in curve::smoothed(&line, 5)[0].iter().zip(&line) {
        assert!((smooth.1 - raw.1).abs() < 1e-9);
    }
    // By hand, window 3: (1 + 2 + 6) / 3 = 3 in the middle, the ends as they are.
    let smooth = curve::smoothed(&[(0.0, 1.0), (1.0, 2.0), (2.0, 6.0)], 3);
    assert_eq!(smooth, [vec![(0.0, 1.0), (1.0, 3.0), (2.0, 6.0)]]);
    // Neighbours of a gap average over what is finite: (2 + 4) / 2.
    let smooth = curve::smoothed(&[(0.0, 2.0), (1.0, 4.0), (2.0, f64::NAN), (3.0, 8.0)], 3);
    assert_eq!(smooth, [vec![(0.0, 2.0), (1.0, 3.0)], vec![(3.0, 8.0)]]);
    assert_eq!(curve::window(&[(0.0, 0.0); 19]), None);
    assert_eq!(curve::window(&[(0.0, 0.0); 1000]), Some(51));
}

#[test]
fn a_constant_curve_has_an_axis() {
    let svg = plane::curve("lr of sft by step", "sft", &[(0.0, 1e-4), (1.0, 1e-4)]).unwrap();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn the_smallest_and_the_largest_numbers_have_an_axis() {
    let (tiny, most) = (5e-324, f64::MAX);
    // The step would be zero, denormal, or infinite.
    for (low, high) in
        [(0.0, tiny), (-tiny, tiny), (0.0, 3e-311), (1e-310, 2e-310), (-1e308, 1e308), (-most, most)]
    {
        assert_eq!(ticks(low, high, 5), [low], "{low:e} to {high:e}");
    }
    assert_eq!(ticks(0.0, most, 1), [0.0]);
    // Steps of 2e307 and of 1e-306, which are large and small but normal.
    assert_eq!((ticks(0.0, 1e308, 5).len(), ticks(0.0, 1e-306, 1).len()), (6, 2));
    assert_eq!((tick_label(-most, 0.0), tick_label(2e12, 1e12)), ("−1.8e308".into(), "2.0e12".into()));

    for values in [[0.0, tiny], [-tiny, tiny], [1e308, -1e308], [-most, most], [most, most], [tiny, tiny]] {
        let points: Vec<(f64, f64)> = (0..40).map(|i| (f64::from(i), values[i as usize % 2])).collect();
        let curve = plane::curve("loss of sft by step", "sft", &points).unwrap();
        for svg in [curve, plane::overlay("loss", &[("run".into(), points)])] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
            // Every place lies on the drawing, and every label is short.
            assert!(svg.split(['"', ' ']).all(|word| word.len() < 100), "{values:?}: {svg}");
        }
    }
}

#[test]
fn numbers_read_well() {
    assert_eq!(seconds(9.44), "9.4 s");
    assert_eq!(seconds(59.96), "1 min 00 s");
    assert_eq!(seconds(160.2), "2 min 40 s");
    assert_eq!(seconds(3_700.0), "1 h 01 min");
    assert_eq!(bytes(1_610_612_736), "1.50 GiB");
    assert_eq!(bytes(10 << 20), "10.0 MiB");
    assert_eq!(ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(ticks(-3.2, 3.2, 8), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(tick_label(0.25, 0.05), "0.25");
    assert_eq!(tick_label(2000.0, 500.0), "2000");
    assert_eq!(tick_label(20_000.0, 5_000.0), "20k");
    assert_eq!(tick_label(-0.0, 0.5), "0.0");
}

/// Checks that a page loads nothing, and that every element that is opened is closed, in order: enough of a
/// parser for a page without raw text elements but its style and scripts.
#[track_caller]
pub(crate) fn check_page(page: &str) {
    let mut text = page.to_owned();
    for name in ["style", "script"] {
        while let Some(start) = text.find(&format!("<{name}")) {
            let end = text[start..].find(&format!("</{name}>")).expect("it is closed") + start;
            let element = text[start..end].to_owned();
            assert!(!element.contains("url(") && !element.contains("@import"), "{name}");
            text.replace_range(start..end + name.len() + 3, "");
        }
    }
    assert!(
        page.contains("\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';")
    );
    for loads in ["http://", "https://", "src=\"", "<link", "javascript:", "\u{1b}", "\u{202e}"] {
        assert!(!text.contains(loads), "{loads:?}");
    }

    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name: String =
            tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "at <{tag}>");
        } else if !(tag.ends_with('/') || ["", "meta", "input"].contains(&name.as_str())) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
}
