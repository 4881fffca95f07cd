package rls_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// A failing store does not decide.
type failing struct{ ratelimit.Store }

func (failing) Take(context.Context, ratelimit.Take) (ratelimit.Outcome, error) {
	return ratelimit.Outcome{}, errDown
}

func (failing) Give(context.Context, ratelimit.Give) (ratelimit.Outcome, error) {
	return ratelimit.Outcome{}, errDown
}

// A slow store decides once it is let.
type slow struct {
	ratelimit.Store
	asked chan context.Context
	let   chan struct{}
}

func newSlow() *slow { return &slow{memory(), make(chan context.Context, 10), make(chan struct{})} }

func (s *slow) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	s.asked <- ctx
	select {
	case <-s.let:
		return s.Store.Take(ctx, t)
	case <-ctx.Done():
		return ratelimit.Outcome{}, ctx.Err()
	}
}

func TestOnlyCallersWithAKey(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	other := r.newKey("one", auth.RatelimitAdmin)
	for _, c := range []struct {
		why    string
		values []string
		want   codes.Code
	}{
		{"none", nil, codes.Unauthenticated},
		{"unknown", []string{"Bearer csk_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, codes.Unauthenticated},
		{"no scheme", []string{r.key}, codes.Unauthenticated},
		{"another scheme", []string{"Basic " + r.key}, codes.Unauthenticated},
		{"two", []string{"Bearer " + r.key, "Bearer " + r.key}, codes.Unauthenticated},
		{"without the scope", []string{"Bearer " + other}, codes.PermissionDenied},
		{"good", []string{"bearer  " + r.key}, codes.OK},
	} {
		ctx := t.Context()
		for _, v := range c.values {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
		}
		if _, err := r.client.ShouldRateLimit(ctx, request("edge", 0, "tenant=a")); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", c.why, err, c.want)
		}
	}
}

// wrong are requests that are refused as such.
var wrong = []struct {
	why  string
	req  *rlspb.RateLimitRequest
	want codes.Code
	says string
}{
	{"no descriptors", request("edge", 0), codes.InvalidArgument, "descriptors are required"},
	{"an unknown domain", request("canary-domain", 0, "tenant=a"), codes.NotFound, "no policy"},
	{"no domain", request("", 0, "tenant=a"), codes.InvalidArgument, "policy is required"},
	{"no limit has the key", request("edge", 0, "user=canary-user"), codes.InvalidArgument, "have the key of no limit"},
	{"no entries", request("edge", 0, ""), codes.InvalidArgument, "have the key of no limit"},
	{"an entry without a key", request("edge", 0, "=canary-value tenant=a"), codes.InvalidArgument, "descriptors"},
	{"two entries of one key", request("edge", 0, "tenant=canary-one tenant=canary-two"), codes.InvalidArgument, "two entries of one key"},
	{"too many descriptors", request("edge", 0, strings.Split(strings.Repeat("tenant=a,", 32)+"tenant=a", ",")...), codes.InvalidArgument, "more than 32"},
	{"more descriptors than are kept", request("edge", 0, strings.Split(strings.Repeat("tenant=a,", 999)+"tenant=a", ",")...), codes.InvalidArgument, "more than 96"},
	{"too many entries", request("edge", 0, manyEntries(33)), codes.InvalidArgument, "more than 32"},
	{"a limit without a unit", request("edge", 0, "tenant=a 5/fortnight"), codes.InvalidArgument, "known unit"},
	{"a limit for a part of a key", request("edge", 0, "tenant=a user=u path=/p 5/day"), codes.InvalidArgument, "the whole key"},
	{"a limit for slots", request("edge", 0, "tenant=a upload=x 5/day"), codes.InvalidArgument, "slots"},
	{"too long a message", request("edge", 0, "tenant="+strings.Repeat("x", 3<<20)), codes.ResourceExhausted, "larger than max"},
}

func manyEntries(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("tenant" + strings.Repeat("x", i) + "=canary-a ")
	}
	return b.String()
}

func TestWrongRequestsAreRefused(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	for _, c := range wrong {
		_, err := r.ask(c.req)
		if status.Code(err) != c.want || !strings.Contains(status.Convert(err).Message(), c.says) {
			t.Errorf("%s: %v, want %v with %q", c.why, err, c.want, c.says)
		}
	}
}

// What clients of the proxy may send is never an error, at which the proxy might let
// them pass, and each value has its own bucket.
func TestR60NoValueIsAnError(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	for _, value := range []string{"", ".", "..", "a\x00b", "a\nb", strings.Repeat("x", 257), strings.Repeat("x", 258), strings.Repeat("é", 10_000)} {
		req := request("edge", 0, "tenant=a path=/")
		req.GetDescriptors()[0].GetEntries()[1].Value = value
		for _, left := range []string{"4 of 5", "3 of 5"} {
			req.GetDescriptors()[0].GetEntries()[0].Value = "t" + value
			if got := say(r.must(req)); got != "OK: OK path "+left {
				t.Errorf("%.20q: %s, want %s", value, got, left)
			}
		}
	}
}

func TestAStoreThatFailsIsToldWithoutItsWords(t *testing.T) {
	r := serve(t, failing{}, ratelimit.Options{}, rls.Options{}) // without a fallback there is no posture
	_, err := r.ask(request("edge", 0, "tenant=a"))
	if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "readonly") {
		t.Errorf("got %v", err)
	}
	if _, err = r.ask(request("edge", 0, "tenant=a -1")); status.Code(err) != codes.Unavailable {
		t.Errorf("a refund: got %v", err)
	}
	if log := r.log.String(); strings.Count(log, "store failed") != 2 || !strings.Contains(log, "readonly") {
		t.Errorf("the log says %q", log)
	}
}

// A panicking store is a defect.
type panicking struct{ ratelimit.Store }

func (panicking) Take(context.Context, ratelimit.Take) (ratelimit.Outcome, error) { panic("here") }

func TestAPanicIsAnAnswerAndALogLine(t *testing.T) {
	r := serve(t, panicking{}, ratelimit.Options{}, rls.Options{})
	_, err := r.ask(request("edge", 0, "tenant=a"))
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "here") {
		t.Errorf("got %v", err)
	}
	if log := r.log.String(); !strings.Contains(log, "panic: here") || !strings.Contains(log, "edge_test.go") {
		t.Errorf("the log says %q", log)
	}
}

func TestTheCallersDeadlineIsKept(t *testing.T) {
	store := newSlow()
	r := serve(t, store, ratelimit.Options{}, rls.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err := r.client.ShouldRateLimit(withKey(ctx, r.key), request("edge", 0, "tenant=a"))
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	asked := <-store.asked
	if until, ok := asked.Deadline(); !ok || until.Sub(begun) > 5*time.Second {
		t.Errorf("the store may take until %v, asked at %v", until, begun)
	}
	<-asked.Done()
	r.await("ShouldRateLimit DeadlineExceeded", "ShouldRateLimit Canceled") // whichever the server notices first
	if strings.Contains(r.log.String(), "defect") {
		t.Errorf("a caller that is gone is logged as a defect: %s", r.log)
	}
}

// It has one also where the caller's is later.
func TestARequestWithoutADeadlineHasOne(t *testing.T) {
	r := serve(t, newSlow(), ratelimit.Options{}, rls.Options{Timeout: 50 * time.Millisecond})
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), patient} {
		begun := time.Now()
		_, err := r.client.ShouldRateLimit(withKey(ctx, r.key), request("edge", 0, "tenant=a"))
		if status.Code(err) != codes.DeadlineExceeded || time.Since(begun) > 30*time.Second {
			t.Errorf("got %v after %v", err, time.Since(begun))
		}
	}
}

// What a call leaves behind for the next one is room: each gets its own answer.
func TestManyAtOnceGetTheirOwnAnswers(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for j := range 20 {
				tenant, parts, want := fmt.Sprintf("tenant=t%d-%d", i, j), i%5+1, "OK: "
				var asked []string
				for n := range parts {
					asked = append(asked, fmt.Sprintf("%s path=/%d", tenant, n))
					want += fmt.Sprintf("OK path %d of 5, ", 5-1-i%3)
				}
				resp, err := r.ask(request("edge", uint32(1+i%3), asked...))
				if err != nil || say(resp) != strings.TrimSuffix(want, ", ") {
					t.Errorf("got %v, %v, want %s", resp, err, want)
				}
			}
		})
	}
	callers.Wait()
}

// await waits until Observe was told of one of the lines.
func (r *rig) await(lines ...string) {
	r.t.Helper()
	told := func() bool {
		return slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(r.seen.String(), line) })
	}
	for begun := time.Now(); !told(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			r.t.Fatalf("not told of any of %q, but of\n%s", lines, r.seen)
		}
	}
}

func TestADrainLetsRequestsFinishAndTakesNoMore(t *testing.T) {
	store := newSlow()
	r := serve(t, store, ratelimit.Options{}, rls.Options{})
	answered := make(chan error, 1)
	go func() {
		_, err := r.ask(request("edge", 0, "tenant=a"))
		answered <- err
	}()
	<-store.asked
	ended := make(chan error, 1)
	go func() { ended <- r.server.Shutdown(context.Background()) }()
	for r.listens() {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-ended:
		t.Errorf("the drain did not wait: %v", err)
	default:
	}
	close(store.let)
	if err := <-answered; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the drain: %v", err)
	}
	if err := <-r.served; err != nil {
		t.Errorf("serve ends with %v", err)
	}
}

func (r *rig) listens() bool {
	conn, err := new(net.Dialer).DialContext(r.t.Context(), "tcp", r.addr)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func TestADrainCutsOffWhatDoesNotEnd(t *testing.T) {
	store := newSlow()
	r := serve(t, store, ratelimit.Options{}, rls.Options{})
	answered := make(chan error, 1)
	go func() {
		_, err := r.ask(request("edge", 0, "tenant=a"))
		answered <- err
	}()
	<-store.asked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.server.Shutdown(ctx); err == nil {
		t.Error("the drain reports nothing")
	}
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("the request: %v", err)
	}
}

func TestADrainEndsStreams(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("got %v, %v", got, err)
	}
	info, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := info.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := info.Recv()
	if err != nil || !strings.Contains(list.String(), "envoy.service.ratelimit.v3.RateLimitService") || !strings.Contains(list.String(), "grpc.health.v1.Health") {
		t.Errorf("reflection lists %v, %v", list, err)
	}
	if err := r.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ends with %v", err)
	}
}

func TestHealthSaysWhatReadinessSays(t *testing.T) {
	var unready error
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{Ready: func() error { return unready }})
	client := healthpb.NewHealthClient(r.conn)
	for _, c := range []struct {
		unready error
		service string
		want    healthpb.HealthCheckResponse_ServingStatus
	}{
		{nil, "", healthpb.HealthCheckResponse_SERVING},
		{nil, "envoy.service.ratelimit.v3.RateLimitService", healthpb.HealthCheckResponse_SERVING},
		{errDown, "", healthpb.HealthCheckResponse_NOT_SERVING},
	} {
		unready = c.unready
		got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: c.service})
		if err != nil || got.GetStatus() != c.want {
			t.Errorf("%q: got %v, %v, want %v", c.service, got, err, c.want)
		}
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another service: %v", err)
	}
}

// Neither the log nor what is counted tells an id or a key.
func TestNoIDIsCountedOrLogged(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	for _, c := range wrong {
		_, _ = r.ask(c.req)
	}
	r.must(request("edge", 0, "tenant=canary-tenant user=canary-user"))
	r.must(request("edge", 99, "tenant=canary-tenant user=canary-user"))
	_, _ = r.client.ShouldRateLimit(withKey(t.Context(), "csk_canarycanarycanarycanarycanary"), request("edge", 0, "tenant=a"))
	told := r.log.String() + r.seen.String()
	if strings.Contains(told, "canary") || strings.Contains(told, r.key) {
		t.Errorf("told:\n%s", told)
	}
	for _, want := range []string{"ShouldRateLimit OK", "ShouldRateLimit OVER_LIMIT", "ShouldRateLimit InvalidArgument", "ShouldRateLimit Unauthenticated"} {
		if !strings.Contains(told, want) {
			t.Errorf("%q was not counted:\n%s", want, told)
		}
	}
}
