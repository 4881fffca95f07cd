package client

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// A connection that died without a word is given up, also where HTTP/2 has all calls share it.
func TestADeadConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request came by %s", r.Proto)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var dead, opened atomic.Int64 // the first so many connections carry nothing any more
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			defer in.Close()
			number := opened.Add(1)
			out, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				return
			}
			defer out.Close()
			carry := func(to, from net.Conn) {
				_, _ = io.Copy(writer(func(b []byte) (int, error) {
					if number <= dead.Load() {
						return len(b), nil
					}
					return to.Write(b)
				}), from)
			}
			go carry(out, in)
			go carry(in, out)
		}
	}()
	c, err := New("https://"+l.Addr().String(), Options{APIKey: "k", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c.opts.HTTP.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	release := api.RateLimitRelease{Policy: "p", SlotID: "s"}
	if err := c.ReleaseSlot(t.Context(), release); err != nil || opened.Load() != 1 {
		t.Fatalf("%v over %d connections", err, opened.Load())
	}
	dead.Store(1)
	if err := c.ReleaseSlot(t.Context(), release); err != nil || opened.Load() != 2 {
		t.Errorf("%v over %d connections", err, opened.Load())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
