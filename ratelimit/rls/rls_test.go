package rls_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// A step is one request and the answer to it, as say writes it.
type step struct {
	why         string
	domain      string
	hits        uint32
	descriptors string // with commas between
	want        string
}

// mapping is what domains, descriptors, hits and limits mean. All steps are of one
// server, in order; each block has a tenant of its own.
var mapping = []step{
	{"a descriptor meets every limit whose key it has, and tells of the one with the least", "edge", 0, "tenant=a user=u", "OK: OK user 3 of 4"},
	{"its other limit was charged as well", "edge", 0, "tenant=a", "OK: OK tenant 8 of 10"},
	{"two descriptors of one request that meet in one bucket charge it once", "edge", 0, "tenant=a user=u, tenant=a", "OK: OK user 2 of 4, OK tenant 7 of 10"},
	{"the order of entries means nothing", "edge", 0, "user=u tenant=a", "OK: OK user 1 of 4"},
	{"hits of the request", "edge", 3, "tenant=a", "OK: OK tenant 3 of 10"},
	{"more than is left: refused, and nothing is taken from the other", "edge", 2, "tenant=a path=/x, tenant=a user=u", "OVER_LIMIT: OK tenant 3 of 10, OVER_LIMIT user 1 of 4"},
	{"what was left before", "edge", 1, "tenant=a path=/x, tenant=a user=u", "OK: OK tenant 2 of 10, OK user 0 of 4"},

	{"hits of a descriptor replace those of the request", "edge", 9, "tenant=b user=u +1, tenant=b path=/p +2", "OK: OK user 3 of 4, OK path 3 of 5"},
	{"where they meet, the larger counted", "edge", 0, "tenant=b", "OK: OK tenant 7 of 10"},
	{"no hits: looked at, and nothing is taken", "edge", 0, "tenant=b user=u +0", "OK: OK user 3 of 4"},
	{"no hits, where one more would not pass", "edge", 0, "tenant=b user=u +3", "OK: OK user 0 of 4"},
	{"so the request is refused, and the other descriptor is not charged", "edge", 0, "tenant=b user=u +0, tenant=b", "OVER_LIMIT: OVER_LIMIT user 0 of 4, UNKNOWN"},
	{"as one sees", "edge", 0, "tenant=b", "OK: OK tenant 3 of 10"},

	{"an override of the policy", "edge", 7, "tenant=c user=vip", "OK: OK user 1 of 8"},
	{"negative hits go back", "edge", 0, "tenant=c user=vip -2", "OK: OK user 3 of 8"},
	{"never above full", "edge", 0, "tenant=c user=vip -100", "OK: OK user 8 of 8"},
	{"what goes back is there for the rest of the request", "edge", 0, "tenant=c path=/p +5", "OK: OK path 0 of 5"},
	{"", "edge", 0, "tenant=c path=/p -1, tenant=c path=/p +1", "OK: OK path 1 of 5, OK path 0 of 5"},

	{"a limit of its own replaces that of the whole key alone", "edge", 0, "tenant=d path=/p 2/day", "OK: OK path 1 of 2"},
	{"", "edge", 2, "tenant=d path=/p 2/day", "OVER_LIMIT: OVER_LIMIT path 1 of 2"},
	{"what was used stays used under the policy's own", "edge", 0, "tenant=d path=/p", "OK: OK path 3 of 5"},
	{"a bucket gets it as its burst", "edge", 6, "tenant=d user=u 7/hour", "OK: OK user 1 of 7"},
	{"a limit of nothing lets nothing pass", "edge", 0, "tenant=d user=v 0/hour", "OVER_LIMIT: UNKNOWN"},
	{"and takes nothing back", "edge", 0, "tenant=d user=v -1 0/hour", "OVER_LIMIT: UNKNOWN"},
	{"nor what comes with it", "edge", 0, "tenant=d user=v 0/hour, tenant=d path=/q", "OVER_LIMIT: UNKNOWN, UNKNOWN"},
	{"", "edge", 0, "tenant=d path=/q", "OK: OK tenant 1 of 10"},

	{"hits that never pass", "edge", 11, "tenant=e", "OVER_LIMIT: UNKNOWN"},
	{"however many", "edge", 0, "tenant=e +18446744073709551615", "OVER_LIMIT: UNKNOWN"},
	{"take nothing", "edge", 10, "tenant=e", "OK: OK tenant 0 of 10"},
	{"a descriptor without a limit is not limited", "edge", 0, "colour=red, tenant=f", "OK: OK, OK tenant 9 of 10"},
	{"slots", "edge", 2, "tenant=g upload=x", "OK: OK upload 0 of 2"},
	{"taken", "edge", 1, "tenant=g upload=x", "OVER_LIMIT: OVER_LIMIT upload 0 of 2"},
	{"a queue", "edge", 3, "tenant=h paced=x", "OK: OK paced 0 of 3"},

	{"a request whose cost shows at its end (apply_on_stream_done) asks first whether one unit is left", "edge", 0, "tenant=i user=u +0", "OK: OK user 4 of 4"},
	{"and is charged then, by a request of its own", "edge", 0, "tenant=i user=u +3", "OK: OK user 1 of 4"},
	{"the next one may begin, too", "edge", 0, "tenant=i user=u +0", "OK: OK user 1 of 4"},
	{"but where it cost more than was left, nothing is charged", "edge", 0, "tenant=i user=u +3", "OVER_LIMIT: OVER_LIMIT user 1 of 4"},

	{"limits that lie apart", "apart", 0, "a=x +4, b=y +1", "OK: OK first 6 of 10, OK second 1 of 2"},
	{"are all charged or none: the first gets back what it gave", "apart", 0, "a=x +4, b=y +2", "OVER_LIMIT: OK first 6 of 10, OVER_LIMIT second 1 of 2"},

	{"a stage that refuses nobody", "quiet", 0, "user=u", "OK: OK user 0 of 1"},
	{"lets pass what is over", "quiet", 0, "user=u", "OK: OK user 0 of 1"},
	{"and what could never pass", "quiet", 2, "user=u", "OK: UNKNOWN"},
}

func TestMappingOnMemory(t *testing.T) { testMapping(t, memory()) }

func TestMappingOnRedis(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: engine.Redis(t).Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	testMapping(t, redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()}))
}

func testMapping(t *testing.T, store ratelimit.Store) {
	r := serve(t, store, ratelimit.Options{}, rls.Options{})
	for _, s := range mapping {
		if got := say(r.must(request(s.domain, s.hits, strings.Split(s.descriptors, ",")...))); got != s.want {
			t.Errorf("%s: %s of %d:\ngot  %s\nwant %s", s.why, s.descriptors, s.hits, got, s.want)
		}
	}
}

func TestAnswersTellWhatTheHTTPAnswerTells(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{Fields: ratelimithttp.Fields{Older: ratelimithttp.Delta}})
	ok := r.must(request("edge", 4, "tenant=a user=u"))
	for name, want := range map[string]string{
		"RateLimit":             `"tenant";r=6;t=10368000, "user";r=0;t=10368000`,
		"RateLimit-Policy":      `"tenant";q=10;w=25920000, "user";q=4;w=10368000`,
		"Retry-After":           "",
		"X-RateLimit-Remaining": "0",
	} {
		if got := header(ok, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if field(ok, "policy") != "edge" || field(ok, "allowed") != true || field(ok, "source") != "memory" || field(ok, "stage") != "enforce" || field(ok, "limiting") != nil {
		t.Errorf("metadata: %v", ok.GetDynamicMetadata())
	}
	if l := ok.GetStatuses()[0].GetCurrentLimit(); l.GetUnit().String() != "DAY" || l.GetUnitMultiplier().GetValue() != 120 {
		t.Errorf("4 per 120 days are told as %v", l)
	}
	over := r.must(request("edge", 0, "tenant=a user=u"))
	if got := header(over, "Retry-After"); got != "2592000" {
		t.Errorf("Retry-After: %q", got)
	}
	if wait, _ := field(over, "retry_after_ms").(float64); field(over, "allowed") != false || field(over, "limiting") != "user" || wait < 2_591_000_000 {
		t.Errorf("metadata: %v", over.GetDynamicMetadata())
	}
	if reset := over.GetStatuses()[0].GetDurationUntilReset().AsDuration(); reset < 119*24*time.Hour || reset > 120*24*time.Hour {
		t.Errorf("reset in %v", reset)
	}
	never := r.must(request("edge", 11, "tenant=a"))
	if header(never, "Retry-After") != "" || field(never, "cost_exceeds_capacity") != 10.0 || field(never, "limiting") != "tenant" || field(never, "allowed") != false {
		t.Errorf("what never passes: %v", never)
	}
	r.must(request("edge", 1, "tenant=a paced=x"))
	paced := r.must(request("edge", 1, "tenant=a paced=x"))
	if delay, _ := field(paced, "delay_ms").(float64); delay < 1000 || delay > 60_000 {
		t.Errorf("a queue tells how long to wait: %v", paced.GetDynamicMetadata())
	}
	if slot, _ := field(r.must(request("edge", 1, "tenant=a upload=x")), "slot_id").(string); !strings.HasPrefix(slot, "slt_") {
		t.Errorf("a slot has the id %q", slot)
	}
	r.must(request("warned", 0, "user=u"))
	if warned := r.must(request("warned", 0, "user=u")); header(warned, "RateLimit-Warning") != "100% over; enforcement begins 2030-01-15" {
		t.Errorf("a warning: %v", warned.GetResponseHeadersToAdd())
	}
}

// What a lease answers says by how much more than the limits say may pass.
func TestALeaseTellsItsBound(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{Leases: true}, rls.Options{})
	resp := r.must(request("leased", 0, "user=u"))
	for range 199 {
		if field(resp, "source") == string(ratelimit.SourceTokenLease) {
			break
		}
		resp = r.must(request("leased", 0, "user=u"))
	}
	if field(resp, "source") != string(ratelimit.SourceTokenLease) || field(resp, "max_overshoot") != 50.0 {
		t.Errorf("got %v", resp.GetDynamicMetadata())
	}
}

// A limit that arrives with the request may last for several of its units.
func TestALimitOfSeveralUnits(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	req := request("edge", 0, "tenant=a path=/p 3/minute")
	req.GetDescriptors()[0].GetLimit().UnitMultiplier = wrapperspb.UInt32(15)
	resp := r.must(req)
	if l := resp.GetStatuses()[0].GetCurrentLimit(); l.GetUnit().String() != "MINUTE" || l.GetUnitMultiplier().GetValue() != 15 || l.GetRequestsPerUnit() != 3 {
		t.Errorf("got %v", l)
	}
}

func TestPosturesAnswerThroughTheProxysOwn(t *testing.T) {
	r := serve(t, failing{}, ratelimit.Options{Fallback: memory()}, rls.Options{})
	for _, c := range []struct {
		domain, want, source, after string
	}{
		{"open", "OK: OK", "fail_open", ""},
		{"edge", "OVER_LIMIT: OVER_LIMIT", "fail_closed", "1"},
		{"quiet", "OK: OK", "fail_open", ""}, // its stage refuses nobody
		{"local", "OK: OK", "local", ""},
		{"local", "OK: OK", "local", ""},
		{"local", "OVER_LIMIT: OVER_LIMIT", "local", "2592000"},
	} {
		resp := r.must(request(c.domain, 0, "user=u tenant=t"))
		if got := say(resp); !strings.HasPrefix(got, c.want) || field(resp, "source") != c.source {
			t.Errorf("%s: got %s by %v, want %s by %s", c.domain, got, field(resp, "source"), c.want, c.source)
		}
		if header(resp, "X-RateLimit-Degraded") != "true" || field(resp, "degraded") != true || field(resp, "degraded_reason") != "readonly" || header(resp, "Retry-After") != c.after {
			t.Errorf("%s: %v", c.domain, resp)
		}
	}
}

func TestTenantsNeverMeet(t *testing.T) {
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{})
	r.must(request("edge", 10, "tenant=a"))
	r.key = r.newKey("two", auth.RatelimitCheck)
	if got := say(r.must(request("edge", 0, "tenant=a"))); got != "OK: OK tenant 9 of 10" {
		t.Errorf("another tenant's key finds %s", got)
	}
}

var errDown = &ratelimit.FaultError{Reason: "readonly", Err: keytype.ErrUnavailable}
