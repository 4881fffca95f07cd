package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// A tap lies between lock clients and the DynamoDB engine. It counts requests, and can
// lose the answer to a write: the engine has carried it out, and its sender meets a
// connection that was closed.
type tap struct {
	engine string // its URL
	addr   string

	mu   sync.Mutex     // guards the rest
	sent map[string]int // by operation
	lose bool
}

// startTap listens until the process ends.
func startTap(engine string) (*tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // bound at once
	if err != nil {
		return nil, err
	}
	t := &tap{engine: engine, addr: l.Addr().String()}
	go func() { _ = http.Serve(l, t) }() //nolint:gosec // on loopback, for one run
	return t, nil
}

// begin counts from zero, and loses the answer to the first write where that is asked for.
func (t *tap) begin(lose bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent, t.lose = map[string]int{}, lose
}

// counts are the requests since begin.
func (t *tap) counts() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent
}

func (t *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone away
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	lost := t.note(operation)
	out, err := http.NewRequestWithContext(r.Context(), r.Method, t.engine+r.URL.Path, bytes.NewReader(body)) //nolint:gosec // to the engine that this run started
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	answer, err := http.DefaultClient.Do(out) //nolint:gosec // as above
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil || lost {
		panic(http.ErrAbortHandler) // closes the connection
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(raw)
}

func (t *tap) note(operation string) (lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent != nil {
		t.sent[operation]++
	}
	write := operation == "PutItem" || operation == "UpdateItem" || operation == "DeleteItem" || operation == "TransactWriteItems"
	lost = t.lose && write
	if lost {
		t.lose = false
	}
	return lost
}
