package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/coordsvc/coordsvc/api"
)

// Listener is the one to serve the API on: what net/http refuses by itself, before
// there is a request that a handler could see, is answered as a problem as well.
// That is what is no HTTP (400), an expectation (417), a header block that is too long
// (431), an unknown transfer coding (501) and another version (505).
func Listener(l net.Listener) net.Listener { return bareListener{l} }

type bareListener struct{ net.Listener }

func (l bareListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		return bareConn{tcp}, nil
	}
	return conn, err
}

type bareConn struct{ *net.TCPConn }

// Write replaces an answer of net/http's own. Each of them is one call of Write.
func (c bareConn) Write(b []byte) (int, error) {
	status, detail, own := ownAnswer(b)
	if !own {
		return c.TCPConn.Write(b)
	}
	if _, err := c.TCPConn.Write(bareProblem(status, detail)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// ownHeaders are those of every answer that net/http writes without a handler, but for
// that to an expectation. An answer of a handler has a Date among them, and no part of
// a body looks like it: JSON has no line breaks within its strings.
var ownHeaders = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// ownAnswer reports whether the bytes are an answer of net/http's own.
func ownAnswer(b []byte) (status int, detail string, own bool) {
	const line = len("HTTP/1.1 400 ")
	if len(b) < line || !bytes.HasPrefix(b, []byte("HTTP/1.")) || b[len("HTTP/1.1 ")] < '4' {
		return 0, "", false
	}
	status, err := strconv.Atoi(string(b[len("HTTP/1.1 ") : line-1]))
	if err != nil {
		return 0, "", false
	}
	if status == http.StatusExpectationFailed {
		return status, "the header Expect asks for what this service does not do", true
	}
	head, _, own := bytes.Cut(b, ownHeaders)
	if !own || bytes.ContainsAny(head, "\r\n") {
		return 0, "", false
	}
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		detail = "the header block is longer than 32768 bytes"
	case http.StatusNotImplemented:
		detail = "the transfer coding is not supported"
	case http.StatusHTTPVersionNotSupported:
		detail = "the version of HTTP is not supported"
	default:
		detail = "this is not a request as HTTP/1.1 has it"
	}
	return status, detail, true
}

// bareProblem is a whole answer, after which the connection is closed.
func bareProblem(status int, detail string) []byte {
	id := newRequestID()
	body, err := json.Marshal(api.Problem{
		Type: "urn:coordsvc:problem:" + string(api.CodeInvalidRequest), Title: kinds[api.CodeInvalidRequest].title,
		Status: int64(status), Code: api.CodeInvalidRequest, Detail: detail, RequestID: id,
	})
	if err != nil {
		panic("httpapi: a problem that is no JSON: " + err.Error())
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nCache-Control: no-store\r\n%s: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), mimeProblem, requestIDHeader, id, len(body), body)
}
