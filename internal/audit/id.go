package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"time"
)

// An ID names an event: 48 bits of Unix milliseconds, then 80 random ones. In
// byte order, as in the order of their texts, ids lie as their instants do. Those
// that one node makes also lie in the order in which it made them; between nodes
// that order is only as good as their clocks.
type ID [16]byte

const idPrefix = "evt_"

// idText keeps the order of what it encodes, which base64 does not.
var idText = base32.HexEncoding.WithPadding(base32.NoPadding)

// String returns evt_ and 26 characters 0–9 A–V.
func (id ID) String() string { return idPrefix + idText.EncodeToString(id[:]) }

// ParseID undoes String.
func ParseID(text string) (ID, error) {
	digits, ok := strings.CutPrefix(text, idPrefix)
	var id ID
	raw, err := idText.DecodeString(digits)
	if copy(id[:], raw); !ok || err != nil || id.String() != text {
		return ID{}, errors.New("audit: not the id of an event")
	}
	return id, nil
}

// Time returns the instant at which the id was made.
func (id ID) Time() time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16)).UTC()
}

// Compare is -1 where the id comes before the other, 0 where they are one, else 1.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// FirstID returns the smallest id of the instant's millisecond, 1970 to 10889.
func FirstID(t time.Time) ID {
	var id ID
	binary.BigEndian.PutUint64(id[:8], uint64(max(0, t.UnixMilli()))<<16)
	return id
}

// reversed maps ids to ids so that their order turns around.
func (id ID) reversed() ID {
	for i := range id {
		id[i] = ^id[i]
	}
	return id
}

// next returns the id that is larger by one.
func (id ID) next() ID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			break
		}
	}
	return id
}

// ids makes the ids of one node.
type ids struct {
	mu   sync.Mutex
	last ID // guarded by mu
}

// next returns a new id of the instant. Within a millisecond ids count up from a
// random one, so that they lie in order. Where the clock went back they go back too.
func (g *ids) next(now time.Time) ID {
	id := FirstID(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	if id.Time().Equal(g.last.Time()) {
		g.last = g.last.next()
		return g.last
	}
	_, _ = rand.Read(id[6:]) // never fails: the runtime stops the process instead
	id[6] &= 0x7f            // room to count up within the millisecond
	g.last = id
	return id
}
