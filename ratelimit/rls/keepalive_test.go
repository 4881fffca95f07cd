package rls_test

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// A bare peer speaks HTTP/2 without a client that would heed the rules.
func bare(t *testing.T, addr string) (*http2.Framer, net.Conn) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return framer, conn
}

// A peer that pings more often than every 10 s is cut off, and told why.
func TestPingsAreRationed(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	framer, conn := bare(t, r.addr)
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	for i := range 4 { // two more than grpc-go lets pass
		if err := framer.WritePing(false, [8]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for answered := 0; ; {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("after %d pings: %v", answered, err)
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				answered++
			}
		case *http2.GoAwayFrame:
			if f.ErrCode == http2.ErrCodeEnhanceYourCalm && string(f.DebugData()) == "too_many_pings" && answered > 0 {
				return
			}
		}
	}
}

// patience is how long peers are heard: gRPC's least and what goes with it, and with
// COORD_TEST_DEPTH=proof what a server has.
func patience() (after, timeout, least time.Duration) {
	if os.Getenv("COORD_TEST_DEPTH") == "proof" {
		return rls.UsualPings()
	}
	return time.Second, time.Second, 200 * time.Millisecond
}

// A peer that says nothing is asked whether it lives, and cut off where it does not answer in time.
func TestSilentPeersAreAsked(t *testing.T) {
	t.Parallel()
	after, timeout, least := patience()
	begun, asked := time.Now(), time.Duration(0) // from before the connection: a busy machine sees all of it late, and nothing early
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{}.WithPings(after, timeout, least))
	framer, conn := bare(t, r.addr)
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			break
		}
		if ping, ok := frame.(*http2.PingFrame); ok && !ping.IsAck() {
			asked = time.Since(begun)
		}
	}
	ended := time.Since(begun)
	if asked < after || ended < after+timeout || ended > after+timeout+time.Minute {
		t.Errorf("asked after %v, ended after %v", asked, ended)
	}
}

// A peer without a request that pings no more often than it may is left alone.
func TestSlowPingsAreAnswered(t *testing.T) {
	t.Parallel()
	_, _, least := patience()
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{}.WithPings(time.Minute, time.Minute, least))
	framer, conn := bare(t, r.addr)
	for i := range 5 { // one more than are let pass too soon
		time.Sleep(least + max(least/10, 200*time.Millisecond)) // a machine that is busy may bring two closer together
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if err := framer.WritePing(false, [8]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("ping %d: %v", i, err)
			}
			switch f := frame.(type) {
			case *http2.PingFrame:
				answered = f.IsAck()
				if !answered { // the server's own
					_ = framer.WritePing(true, f.Data)
				}
			case *http2.GoAwayFrame:
				t.Fatalf("ping %d: cut off: %s", i, f.DebugData())
			}
		}
	}
}
