package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

type sample struct {
	Name    string            `json:"name"`
	Count   int64             `json:"count"`
	Note    *string           `json:"note,omitempty"`
	On      *bool             `json:"on,omitempty"`
	Limit   *int64            `json:"limit,omitempty"`
	Tags    []string          `json:"tags,omitempty"`
	Map     map[string]string `json:"map,omitempty"`
	Expires *Instant          `json:"expires,omitempty"`
	Value   json.RawMessage   `json:"value,omitempty"`
}

const secret = "csk_0SeCrEt9"

func TestDecodeRefuses(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		why, body, detail string
	}{
		{"nothing", ``, "the body is not one JSON object: see byte 0"},
		{"blank", " \n", "the body is not one JSON object: see byte 2"},
		{"null", `null`, "the body must be one JSON object"},
		{"an array", `[]`, "the body must be one JSON object"},
		{"a string", `"` + secret + `"`, "the body must be one JSON object"},
		{"a second object", `{} {}`, "the body is not one JSON object: see byte 3"},
		{"trailing bytes", `{"name":"a"}x`, "the body is not one JSON object: see byte 12"},
		{"a trailing NUL", "{}\x00", "the body is not one JSON object: see byte 2"},
		{"a byte order mark", "\ufeff{}", "the body is not one JSON object: see byte 0"},
		{"cut off", `{"name":"a"`, "the body is not one JSON object: see byte 11"},
		{"a trailing comma", `{"name":"a",}`, "the body is not one JSON object: see byte 11"},
		{"a comment", `{/**/"name":"a"}`, "the body is not one JSON object: see byte 1"},
		{"single quotes", `{'name':'a'}`, "the body is not one JSON object: see byte 1"},
		{"an unknown field", `{"wait":1}`, "wait is not a known field"},
		{"an unknown field that may be a secret", `{"` + secret + `":1}`, "unknown field at byte 1"},
		{"another case", `{"NAME":"a"}`, "unknown field at byte 1"},
		{"a duplicate", `{"name":"a","name":"a"}`, "name has a duplicate name"},
		{"a duplicate, escaped", `{"name":"a","n\u0061me":"b"}`, "name has a duplicate name"},
		{"a duplicate inside", `{"map":{"k":"a","k":"b"}}`, "map has a duplicate name"},
		{"a duplicate in a free value", `{"value":{"k":[{"x":1,"x":2}]}}`, "value has a duplicate name"},
		{"null for a string", `{"name":null}`, "name must not be null"},
		{"null for an optional string", `{"note":null}`, "note must not be null"},
		{"null for an optional integer", `{"limit":null}`, "limit must not be null"},
		{"null for an optional boolean", `{"on":null}`, "on must not be null"},
		{"null for an array", `{"tags":null}`, "tags must not be null"},
		{"null in an array", `{"tags":[null]}`, "tags must not be null"},
		{"null for an object", `{"map":null}`, "map must not be null"},
		{"null in an object", `{"map":{"k":null}}`, "map must not be null"},
		{"null for an instant", `{"expires":null}`, "expires must not be null"},
		{"a number for a string", `{"name":1}`, "name must be a string"},
		{"a string for an integer", `{"count":"` + secret + `"}`, "count must be an integer of 64 bits without fraction or exponent"},
		{"a fraction", `{"count":1.0}`, "count must be an integer of 64 bits without fraction or exponent"},
		{"an exponent", `{"count":1e2}`, "count must be an integer of 64 bits without fraction or exponent"},
		{"a huge exponent", `{"count":1e400}`, "count must be an integer of 64 bits without fraction or exponent"},
		{"2^63", `{"count":9223372036854775808}`, "count must be an integer of 64 bits without fraction or exponent"},
		{"below −2^63", `{"count":-9223372036854775809}`, "count must be an integer of 64 bits without fraction or exponent"},
		{"optional: a fraction", `{"limit":1.5}`, "limit must be an integer of 64 bits without fraction or exponent"},
		{"a leading zero", `{"count":01}`, "the body is not one JSON object: see byte 10"},
		{"a plus sign", `{"count":+1}`, "the body is not one JSON object: see byte 9"},
		{"NaN", `{"count":NaN}`, "the body is not one JSON object: see byte 9"},
		{"Infinity", `{"count":Infinity}`, "the body is not one JSON object: see byte 9"},
		{"a string for a boolean", `{"on":"true"}`, "on must be true or false"},
		{"a string for an array", `{"tags":"a"}`, "tags must be an array"},
		{"a number in an array", `{"tags":[1]}`, "tags must be a string"},
		{"an array for an object", `{"map":[]}`, "map must be an object"},
		{"a number in an object", `{"map":{"k":1}}`, "map must be a string"},
		{"a number for an instant", `{"expires":1}`, "expires must be a string"},
		{"invalid UTF-8", "{\"name\":\"\xff\"}", "the body is not valid UTF-8"},
		{"an overlong form", "{\"name\":\"\xc0\xaf\"}", "the body is not valid UTF-8"},
		{"half a surrogate pair", `{"name":"\ud800"}`, "the body is not one JSON object: see byte 9"},
		{"the other half", `{"name":"\udc00x"}`, "the body is not one JSON object: see byte 9"},
		{"half a pair in a free value", `{"value":"\ud800"}`, "the body is not one JSON object: see byte 10"},
		{"half a pair in a name", `{"map":{"\ud800":"x"}}`, "the body is not one JSON object: see byte 9"},
		{"a raw control character", "{\"name\":\"a\nb\"}", "the body is not one JSON object: see byte 10"},
		{"20,000 arrays", deep(20_000), "the body must be one JSON object"},
		{"20,000 arrays in a field", `{"name":` + deep(20_000) + `}`, "the body is not one JSON object: see byte 10007"},
		{"20,000 arrays in a free value", `{"value":` + deep(20_000) + `}`, "the body is not one JSON object: see byte 10008"},
		{"too deep a free value", `{"value":` + deep(MaxDepth+1) + `}`, "value is nested more than 128 deep"},
		{"a free float too large", `{"value":[1e400]}`, "value holds a number outside 64 bits"},
		{"a free integer too large", `{"value":18446744073709551616}`, "value holds a number outside 64 bits"},
		{"a free NaN", `{"value":NaN}`, "the body is not one JSON object: see byte 9"},
	} {
		t.Run(c.why, func(t *testing.T) {
			err := Decode([]byte(c.body), &sample{})
			refusal, ok := errors.AsType[*DecodeError](err)
			if !ok || refusal.Value || refusal.Error() != c.detail {
				t.Errorf("Decode: %v (%+v), want %q", err, refusal, c.detail)
			}
		})
	}
}

func TestDecodeKnowsAWrongValueFromAWrongType(t *testing.T) {
	for _, text := range []string{"tomorrow", "", "2026-01-02", "2026-13-02T15:04:05Z", "2026-01-02T15:04:05,1Z", "2026-01-02T15:04:05", `\u0000`} {
		err := Decode([]byte(`{"expires":"`+text+`"}`), &sample{})
		refusal, ok := errors.AsType[*DecodeError](err)
		if !ok || !refusal.Value || refusal.Field != "expires" {
			t.Errorf("%q: %+v", text, err)
		}
	}
}

func TestDecodeAccepts(t *testing.T) {
	body := ` {"name":"na\u00efve \ud83d\ude00","count":-9223372036854775808,"note":"","on":false,"limit":0,` +
		`"tags":[],"map":{"":""},"expires":"2026-01-02T16:04:05.6789+01:00","value":null} ` + "\n"
	var got sample
	if err := Decode([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "naïve 😀" || got.Count != -1<<63 || *got.Note != "" || *got.On || *got.Limit != 0 || got.Tags == nil || got.Map == nil {
		t.Errorf("decoded %+v", got)
	}
	if got.Expires.String() != "2026-01-02T15:04:05.678Z" {
		t.Errorf("the instant became %s", got.Expires)
	}
	if string(got.Value) != "null" {
		t.Errorf("the free value became %q", got.Value)
	}
	for _, value := range []string{`18446744073709551615`, `-9223372036854775808`, `1e308`, `0.1`, `{"a":[{"b":"<&>"}]}`, `""`, strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth)} {
		if err := Decode([]byte(`{"value":`+value+`}`), &got); err != nil || string(got.Value) != value {
			t.Errorf("the free value %s became %s, %v", value, got.Value, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"name":"a","count":1}`, `{"name":"a","name":"b"}`, `{"count":1.0}`, `{"count":1e400}`, `{"value":[1,{"a":null}]}`,
		`{"map":{"k":"v"}}`, `{"expires":"2026-01-02T15:04:05Z"}`, `null`, `[]`, `{"name":"\ud800"}`, "{\"name\":\"\xff\"}", `{"tags":[null]}`, `{} {}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got sample
		err := Decode(body, &got)
		if err != nil {
			if _, ok := errors.AsType[*DecodeError](err); !ok {
				t.Fatalf("an error of another type: %v", err)
			}
			return
		}
		// What the strict reader takes, the standard one reads alike.
		var std sample
		if err := json.Unmarshal(body, &std); err != nil {
			t.Fatalf("accepted what is no JSON: %v", err)
		}
		if fmt.Sprint(std.Name, std.Count, std.Tags, std.Map) != fmt.Sprint(got.Name, got.Count, got.Tags, got.Map) {
			t.Fatalf("read %+v, the standard library %+v", got, std)
		}
	})
}
