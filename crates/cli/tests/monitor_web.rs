//! `schwann monitor --web` as the program serves it. What the page does is tested where it is made.

use crate::common::Place;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// The monitor with its page, and where that is.
fn serve(place: &Place, at: &str, more: &[&str]) -> (Child, String) {
    let web = format!("--web={at}");
    let args = [&["monitor", "wired-cfc", "--batch", "1", "--steps", "4", "--every", "100ms", &web][..], more].concat();
    let mut child = place.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().split_once("http://").unwrap_or_else(|| panic!("no address: {line}")).1.to_owned();
    (child, url)
}

#[test]
fn the_page_and_its_stream_come_from_the_address_that_was_told_until_ctrl_c() {
    let place = Place::new("web");
    let (mut child, url) = serve(&place, "127.0.0.1:0", &[]);
    let host = url.trim_end_matches('/');
    let mut page = String::new();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>Schwann monitor</title>"), "{page}");
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut seen = vec![];
    for line in BufReader::new(stream).lines() {
        seen.extend(line.unwrap().strip_prefix("event: ").map(str::to_owned));
        if seen.iter().filter(|event| *event == "moment").count() > 2 {
            break;
        }
    }
    assert_eq!(seen[..2], ["about", "past"]);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_port_that_is_taken_is_said_and_time_that_is_over_ends_the_page() {
    let place = Place::new("web-taken");
    let (mut child, url) = serve(&place, "127.0.0.1:0", &["--for", "60s"]);
    let at = format!("--web={}", url.trim_end_matches('/'));
    let (_, said) = place.run(2, &["monitor", "wired-cfc", &at]);
    assert!(said.contains("another program has this port"), "{said}");
    let _ = child.kill();
    let _ = child.wait();
    let (mut child, _) = serve(&place, "127.0.0.1:0", &["--for", "500ms"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
