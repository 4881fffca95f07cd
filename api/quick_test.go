package api

import (
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

// The plain forms are read quickly, or nobody would notice that they are not.
func TestPlainChecksAreReadQuickly(t *testing.T) {
	for _, body := range []string{
		`{"policy":"p","descriptors":{"tenant":"t","user":"ключ"}}`,
		`{"policy":"p","descriptors":{},"cost":12,"request_id":"r"}`,
		` { "cost" : 0 , "policy" : "p" } ` + "\n",
		`{}`,
	} {
		if !quickly([]byte(body), &RateLimitRequest{}) {
			t.Errorf("%s is read slowly", body)
		}
	}
}

// What is read quickly is what is read without that.
func FuzzQuickly(f *testing.F) {
	for _, body := range []string{
		`{"policy":"p","descriptors":{"tenant":"t","user":"u"},"cost":12,"request_id":"r"}`,
		`{"policy":"p","policy":"p"}`, `{"policy":"","policy":"p"}`, `{"descriptors":{"a":"b","a":"b"}}`, `{"descriptors":{},"descriptors":{}}`,
		`{"cost":1,"cost":1}`, `{"cost":01}`, `{"cost":-1}`, `{"cost":1.0}`, `{"cost":1e2}`, `{"cost":9223372036854775808}`, `{"cost":}`, `{"cost":null}`,
		`{"policy":"a\u0062"}`, `{"Policy":"p"}`, `{"unknown":1}`, `{"policy":null}`, `{"policy":"p",}`, `{,"policy":"p"}`, `{"policy" "p"}`, `{"policy":"p"}}`, "{}\x00", "\x00{}", "{\x00}", "{\"cost\":1\x00}",
		`{"policy":"p"} {}`, `{"policy":"p"`, `{"policy":"p}`, `{"request_id":"","request_id":"a"}`, `{"policy":"` + "\x7f" + `"}`, `{"policy":"` + "\n" + `"}`, ``, ` `, `[]`, `"p"`,
		`{"descriptors":{"a":1}}`, `{"descriptors":{"a":"b",}}`, `{"descriptors":[]}`, `{"cost":0}`, `{"cost":00}`, `{"cost":123456789012345678}`, `{"cost":1 2}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !utf8.Valid(body) {
			return
		}
		var quick, slow RateLimitRequest
		if !quickly(body, &quick) {
			return
		}
		if err := json.Unmarshal(body, &slow, strict); err != nil || !reflect.DeepEqual(quick, slow) {
			t.Errorf("%q is read quickly as %+v, else as %+v, %v", body, quick, slow, err)
		}
	})
}
