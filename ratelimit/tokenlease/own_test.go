package tokenlease

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// What is kept of a request's key keeps nothing else of the request alive, of whose text
// its parts may be.
func TestAKeyThatIsKeptKeepsNoRequest(t *testing.T) {
	whole := strings.Clone("tenant|policy|user|alice|and a lot more")
	parts := strings.Split(whole, "|")
	for _, names := range [][]string{nil, {"user"}} {
		own := Key{Tenant: parts[0], Policy: parts[1], Names: names, Descriptors: map[string]string{parts[2]: parts[3]}}.own()
		kept := append(slices.Collect(maps.Keys(own.Descriptors)), own.Tenant, own.Policy, own.Descriptors["user"])
		if !slices.Equal(kept, []string{"user", "tenant", "policy", "alice"}) {
			t.Fatalf("it has %q", kept)
		}
		from := uintptr(unsafe.Pointer(unsafe.StringData(whole)))
		for _, text := range kept {
			if at := uintptr(unsafe.Pointer(unsafe.StringData(text))); at >= from && at < from+uintptr(len(whole)) {
				t.Errorf("%q is a part of the request", text)
			}
		}
	}
}
