package api

import (
	"encoding/json"
	"testing"
)

// What encoding/json writes is written in the same way, but for text that is not valid
// UTF-8, of which it would make another text.
func TestEncode(t *testing.T) {
	for _, body := range []any{
		CreateSession{UserID: "a<b>&\u2028\ufffd"},
		RateLimitRequest{Policy: "p", Descriptors: Descriptors{"b": "2", "a": "1"}, Cost: new(int64(0))},
		CompleteClaim{ClaimID: "c", Response: json.RawMessage(`{"a": "\ufffd", "a": 1e3}`)},
		ReleaseLeaseSet{},
		json.RawMessage(`null`),
	} {
		want, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Encode(body); err != nil || string(got) != string(want) {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	for _, body := range []any{
		CreateSession{UserID: "ada\xff"},
		RateLimitRequest{Descriptors: Descriptors{"\xff": "x"}},
		CompleteClaim{Response: json.RawMessage(`{`)},
		CompleteClaim{Response: json.RawMessage("\"\xff\"")},
	} {
		if got, err := Encode(body); err == nil {
			t.Errorf("%s", got)
		}
	}
}
