package api_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

func ExampleDecode() {
	var body api.AcquireLease
	fmt.Println(api.Decode([]byte(`{"owner":"w1","ttl_ms":30000}`), &body), body.Owner, body.TTLMS)
	fmt.Println(api.Decode([]byte(`{"owner":"w1","ttl_ms":3e4}`), &body))
	fmt.Println(api.Decode([]byte(`{"owner":"w1","wait":100}`), &body))
	// Output:
	// <nil> w1 30000
	// ttl_ms must be an integer of 64 bits without fraction or exponent
	// wait is not a known field
}

func ExampleInstant() {
	cet := time.FixedZone("CET", 3600)
	out, err := json.Marshal(api.At(time.Date(2026, 1, 2, 16, 4, 5, 999_999, cet)))
	fmt.Println(string(out), err)
	// Output: "2026-01-02T15:04:05.000Z" <nil>
}

func TestInstantIsWholeMilliseconds(t *testing.T) {
	var i api.Instant
	if err := json.Unmarshal([]byte(`"2026-01-02T15:04:05.6789Z"`), &i); err != nil {
		t.Fatal(err)
	}
	if want := time.Date(2026, 1, 2, 15, 4, 5, 678e6, time.UTC); !i.Equal(want) {
		t.Errorf("read %v, want %v", i.Time, want)
	}
	for _, text := range []string{`1`, `null`, `{}`, `"x"`, `""`} {
		if json.Unmarshal([]byte(text), &i) == nil {
			t.Errorf("read %s", text)
		}
	}
}
