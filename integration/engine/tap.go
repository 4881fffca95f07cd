package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

// A Call is one thing that a request asks of DynamoDB. The parts of a transaction are
// asked for one by one, by the names that permissions have for them.
type Call struct {
	Agent     string // the request's User-Agent
	Operation string
	Table     string
	Index     string // "" = the table itself
	PK, SK    string // of the item, where the request names one
}

// parts are what a transaction's items are called in permissions.
var parts = map[string]string{"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem", "Get": "GetItem"}

// Calls reads what a request asks for.
func Calls(r *http.Request, body []byte) ([]Call, error) {
	type named struct {
		TableName, IndexName string
		Key, Item            map[string]json.RawMessage
	}
	var request struct {
		named
		TransactItems []map[string]named
		RequestItems  map[string]json.RawMessage
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, fmt.Errorf("engine: read a request: %w", err)
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var calls []Call
	add := func(n named, operation string) {
		key := n.Key
		if key == nil {
			key = n.Item
		}
		c := Call{Agent: r.UserAgent(), Operation: operation, Table: n.TableName, Index: n.IndexName}
		c.PK, c.SK = text(key["pk"]), text(key["sk"])
		calls = append(calls, c)
	}
	switch {
	case request.TransactItems != nil:
		for _, item := range request.TransactItems {
			for part, n := range item {
				add(n, parts[part])
			}
		}
	case request.RequestItems != nil:
		for table := range request.RequestItems {
			add(named{TableName: table}, operation)
		}
	default:
		add(request.named, operation)
	}
	return calls, nil
}

// text is an attribute that is a string.
func text(attribute json.RawMessage) string {
	var a struct{ S string }
	_ = json.Unmarshal(attribute, &a) // absent, or of another type
	return a.S
}

var listener atomic.Pointer[func([]Call, error)]

// Listen has every request of processes that are given an engine's Env told to the
// function, from then on. It is called before engines are started.
func Listen(fn func([]Call, error)) { listener.Store(&fn) }

// A tap lies before an engine. It hands on all bytes as they come, and reads along.
type tap struct {
	to   string // the engine's host:port
	tell func([]Call, error)

	mu    sync.Mutex // guards the rest
	at    string     // where it listens, the same after it was closed
	l     net.Listener
	conns map[net.Conn]bool // nil while closed
}

// Watched is the engine's URL for processes: that of a tap, where somebody listens.
func (d *Dynamo) Watched() string {
	tell := listener.Load()
	u, err := url.Parse(d.Endpoint)
	if tell == nil || err != nil || u.Scheme != "http" {
		return d.Endpoint
	}
	d.tapOnce.Do(func() {
		t := &tap{to: u.Host, tell: *tell, at: "127.0.0.1:0"}
		if port, err := freePort(); err == nil {
			t.at = fmt.Sprint("127.0.0.1:", port)
		}
		if err := t.open(); err != nil {
			panic(fmt.Sprintf("engine: %v", err))
		}
		d.tap = t
	})
	u.Host = d.tap.at
	return u.String()
}

// open takes connections, again where the tap was closed.
func (t *tap) open() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l, err := net.Listen("tcp", t.at) //nolint:noctx // a local port, bound at once
	if err != nil {
		return fmt.Errorf("tap: %w", err)
	}
	t.l, t.at, t.conns = l, l.Addr().String(), map[net.Conn]bool{}
	go t.accept(l)
	return nil
}

// close refuses connections, and ends those there are, as an engine does that is gone.
func (t *tap) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.l.Close()
	for c := range t.conns {
		_ = c.Close()
	}
	t.conns = nil
}

func (t *tap) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go t.carry(c)
	}
}

// keep reports whether the connection may stay, and ends it with the tap.
func (t *tap) keep(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil {
		return false
	}
	t.conns[c] = true
	return true
}

func (t *tap) carry(c net.Conn) {
	defer func() {
		_ = c.Close()
		t.mu.Lock()
		delete(t.conns, c)
		t.mu.Unlock()
	}()
	if !t.keep(c) {
		return
	}
	engine, err := net.Dial("tcp", t.to) //nolint:noctx // ends with the engine
	if err != nil {
		return
	}
	defer func() { _ = engine.Close() }()
	read, written := io.Pipe()
	go t.listen(read)
	go func() {
		_, err := io.Copy(engine, io.TeeReader(c, written))
		_ = written.Close()
		if err != nil {
			_ = engine.Close()
			return
		}
		_ = engine.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it was dialed as one
	}()
	_, _ = io.Copy(c, engine)
}

// listen tells of the requests of one connection.
func (t *tap) listen(from *io.PipeReader) {
	r := bufio.NewReader(from)
	for {
		request, err := http.ReadRequest(r)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.tell(nil, fmt.Errorf("engine: %w", err))
			}
			break
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			break // the caller is gone
		}
		t.tell(Calls(request, body))
	}
	_, _ = io.Copy(io.Discard, r) // what is not understood is handed on all the same
}
