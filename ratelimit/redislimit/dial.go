package redislimit

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// Dialer is the client's own dialer but for this: where it gets no connection it
// returns one on which everything fails. The client's pool counts failed dials, and
// after as many as it may have connections it does not dial for up to a second; the
// breaker in front of the client knows sooner when the server is back.
func Dialer(o *redis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := redis.NewDialer(o)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return deadConn{dialError{err}}, nil //nolint:nilerr // the connection has the error
		}
		return conn, nil
	}
}

// A dialError says that nothing was sent. It hides what is in it, which the client
// would unpack.
type dialError struct{ err error }

func (e dialError) Error() string { return "dial: " + e.err.Error() }

// Timeout and Temporary make it a net.Error: a Cluster's client then looks for another layout.
func (dialError) Timeout() bool { return false }

// Temporary is part of net.Error.
func (dialError) Temporary() bool { return true }

// NotSent is what tells the stores over the client that nothing was.
func (dialError) NotSent() {}

// A deadConn fails with the error of its dial.
type deadConn struct{ err error }

func (c deadConn) Read([]byte) (int, error)       { return 0, c.err }
func (c deadConn) Write([]byte) (int, error)      { return 0, c.err }
func (deadConn) Close() error                     { return nil }
func (deadConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (deadConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (deadConn) SetDeadline(time.Time) error      { return nil }
func (deadConn) SetReadDeadline(time.Time) error  { return nil }
func (deadConn) SetWriteDeadline(time.Time) error { return nil }
