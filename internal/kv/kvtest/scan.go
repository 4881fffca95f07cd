package kvtest

import (
	"slices"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

func testScan(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) {
		for _, key := range []string{"b", "a\x00", "a", "ab", "\xff\xff", "\xff", "a\xff", "B", "1:x1:y", "10:x"} {
			put(tx, key, "v"+key)
		}
		tx.Put("thing", "a0", nil, time.Time{})
		tx.Put("thingss", "a0", nil, time.Time{})
	})
	view(t, s, func(tx kv.Tx) {
		for _, c := range []struct {
			why, prefix, after string
			want               []string
		}{
			{"everything in byte order", "", "", []string{"10:x", "1:x1:y", "B", "a", "a\x00", "ab", "a\xff", "b", "\xff", "\xff\xff"}},
			{"the prefix itself belongs to it", "a", "", []string{"a", "a\x00", "ab", "a\xff"}},
			{"a prefix that ends in the highest byte", "\xff", "", []string{"\xff", "\xff\xff"}},
			{"nothing has it", "c", "", nil},
			{"beyond everything", "\xff\xff\xff", "", nil},
			{"after an item", "a", "a\x00", []string{"ab", "a\xff"}},
			{"after what is not there", "a", "aa", []string{"ab", "a\xff"}},
			{"after the last", "a", "a\xff", nil},
			{"after is below the prefix", "b", "a", []string{"b"}},
			{"after is above the prefix", "a", "b", nil},
			{"after without prefix", "", "b", []string{"\xff", "\xff\xff"}},
		} {
			if got := scan(tx, c.prefix, c.after); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", c.why, got, c.want)
			}
		}
		tx.Scan(bucket, "a", "", func(key string, value []byte) bool {
			expect(t, key, value, "v"+key)
			return true
		})
		calls := 0
		tx.Scan(bucket, "a", "", func(string, []byte) bool { calls++; return calls < 2 })
		if calls != 2 {
			t.Errorf("Scan went on to %d calls after fn returned false at the second", calls)
		}
		tx.Scan("no such bucket", "", "", func(key string, _ []byte) bool { t.Errorf("from no bucket: %q", key); return true })
	})
}

func testScanOwnWrites(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) {
		for _, key := range []string{"a1", "a3", "a5", "a7", "b1"} {
			put(tx, key, "stored")
		}
	})
	update(t, s, func(tx kv.Tx) {
		tx.Delete(bucket, "a1")
		put(tx, "a0", "own")
		put(tx, "a3", "own")
		put(tx, "a4", "own")
		tx.Delete(bucket, "a4")
		tx.Delete(bucket, "a5")
		put(tx, "a5", "own")
		put(tx, "a6", "own")
		tx.Delete(bucket, "a7")
		put(tx, "a9", "own")
		tx.Put("other", "a2", []byte("own"), time.Time{})
		for _, c := range []struct {
			why, prefix, after string
			want               []string
		}{
			{"merged", "a", "", []string{"a0", "a3", "a5", "a6", "a9"}},
			{"after an own write", "a", "a5", []string{"a6", "a9"}},
			{"after a deleted item", "a", "a7", []string{"a9"}},
			{"a stored item behind the last own one", "", "a6", []string{"a9", "b1"}},
		} {
			if got := scan(tx, c.prefix, c.after); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", c.why, got, c.want)
			}
		}
		tx.Scan(bucket, "a", "", func(key string, value []byte) bool { expect(t, key, value, "own"); return key < "a5" })
	})
	expectItems(t, s, "other/a2=own", "things/a0=own", "things/a3=own", "things/a5=own", "things/a6=own", "things/a9=own", "things/b1=stored")
}

func testScanAndWrite(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) { put(tx, "a", "stored"); put(tx, "c", "stored") })
	update(t, s, func(tx kv.Tx) {
		put(tx, "b", "own")
		var seen []string
		tx.Scan(bucket, "", "", func(key string, _ []byte) bool {
			seen = append(seen, key)
			tx.Delete(bucket, key)
			put(tx, key+"+", "new")
			return true
		})
		if want := []string{"a", "b", "c"}; !slices.Equal(seen, want) {
			t.Errorf("seen %q, want %q", seen, want)
		}
	})
	expectItems(t, s, "things/a+=new", "things/b+=new", "things/c+=new")
}

func testWalk(t *testing.T, s Store) {
	expectItems(t, s)
	update(t, s, func(tx kv.Tx) {
		tx.Put("z", "1", []byte("z1"), start)
		tx.Put("b", "2", []byte("b2"), time.Time{})
		tx.Put("b", "1", []byte("b1"), start)
	})
	expectItems(t, s, "b/1=b1", "b/2=b2", "z/1=z1")
	calls := 0
	check(t, s.Walk(t.Context(), func(string, string, []byte) bool { calls++; return calls < 2 }))
	if calls != 2 {
		t.Errorf("Walk went on to %d calls after fn returned false at the second", calls)
	}
}

func scan(tx kv.Tx, prefix, after string) (keys []string) {
	tx.Scan(bucket, prefix, after, func(key string, _ []byte) bool {
		keys = append(keys, key)
		return true
	})
	return keys
}
