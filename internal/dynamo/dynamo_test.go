package dynamo_test

import (
	"testing"

	"github.com/coordsvc/coordsvc/internal/dynamo"
)

func TestReader(t *testing.T) {
	item := dynamo.Item{
		"v": dynamo.N(1), "name": dynamo.S("a"), "n": dynamo.N(int64(1)<<53 - 1),
		"raw": dynamo.B([]byte("x")), "yes": dynamo.Bool(true),
	}
	r := dynamo.Read(item, 1)
	if r.Str("name") != "a" || r.Int("n") != 1<<53-1 || string(r.Bytes("raw")) != "x" || !r.Bool("yes") || !r.Has("n") {
		t.Errorf("read other values than were written: %v", item)
	}
	if r.Str("none") != "" || r.Int("none") != 0 || r.Bytes("none") != nil || r.Bool("none") || r.Has("none") {
		t.Error("an absent attribute is not its zero value")
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

func TestReaderErrors(t *testing.T) {
	for name, c := range map[string]struct {
		item dynamo.Item
		read func(*dynamo.Reader)
		bad  bool
	}{
		"another format":    {dynamo.Item{"v": dynamo.N(2)}, func(*dynamo.Reader) {}, true},
		"no format":         {dynamo.Item{"n": dynamo.N(2)}, func(*dynamo.Reader) {}, true},
		"no item":           {nil, func(r *dynamo.Reader) { r.Int("n") }, false},
		"string for number": {dynamo.Item{"v": dynamo.N(1), "n": dynamo.S("1")}, func(r *dynamo.Reader) { r.Int("n") }, true},
		"number for string": {dynamo.Item{"v": dynamo.N(1), "s": dynamo.N(1)}, func(r *dynamo.Reader) { r.Str("s") }, true},
		"fraction":          {dynamo.Item{"v": dynamo.N(1), "n": number("1.5")}, func(r *dynamo.Reader) { r.Int("n") }, true},
		"beyond 64 bits":    {dynamo.Item{"v": dynamo.N(1), "n": number("9223372036854775808")}, func(r *dynamo.Reader) { r.Int("n") }, true},
		"first error stays": {dynamo.Item{"v": dynamo.N(1), "s": dynamo.N(1)}, func(r *dynamo.Reader) { r.Str("s"); r.Int("v") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := dynamo.Read(c.item, 1)
			c.read(r)
			if err := r.Err(); (err != nil) != c.bad {
				t.Errorf("got %v", err)
			}
		})
	}
}
