package redislimit

import (
	"strconv"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
)

// Whatever the key and however many masters have ranges of equal length, no master has
// two shards more than another; the first shard lies where the whole bucket would.
func TestShardsSpreadOverSlots(t *testing.T) {
	for key := range 300 {
		whole := keytype.RateBucket.Tagged("p:", "tag"+strconv.Itoa(key), "key")
		for _, n := range []int{2, 3, 16, 64} {
			seen := map[int]int{}
			for k := range n {
				name := spread("p:", whole, k, n)
				tag, _, _ := strings.Cut(strings.TrimPrefix(name, "p:{"), "}")
				seen[int(crc16(0, tag)%slots)]++
			}
			wholeTag, _, _ := strings.Cut(strings.TrimPrefix(whole, "p:{"), "}")
			if len(seen) != n || seen[int(crc16(0, wholeTag)%slots)] != 1 {
				t.Fatalf("%d shards lie in %d slots: %v", n, len(seen), seen)
			}
			for masters := 2; masters <= 8; masters++ {
				counts := make([]int, masters)
				for slot := range seen {
					counts[slot*masters/slots]++
				}
				for _, c := range counts {
					if c < n/masters || c > (n+masters-1)/masters {
						t.Fatalf("key %d, %d shards, %d masters: %v", key, n, masters, counts)
					}
				}
			}
		}
	}
}
