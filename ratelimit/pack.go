package ratelimit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// format is the first byte of every packed state; it changes with the layout.
// Behind it stand numbers, each after a colon, all decimal: a script in a store
// reads and writes them too.
//
// Another stands for the same with something pending, and a third for a debt without, of
// which there are the most: a script spends a fifth of a call on the digits of four.
const (
	format        = '1'
	formatPending = '2'
	formatDebt    = '3'
)

var errFormat = errors.New("state of an unknown format")

// packNumbers writes the format and the numbers.
func packNumbers(numbers ...int64) []byte {
	packed := append(make([]byte, 0, 16+12*len(numbers)), format)
	for _, n := range numbers {
		packed = appendNumber(packed, n)
	}
	return packed
}

func appendNumber(packed []byte, n int64) []byte {
	return strconv.AppendInt(append(packed, ':'), n, 10)
}

// cutFormat takes the format off the front.
func cutFormat(packed []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(packed, []byte{format})
	if !ok {
		return nil, errFormat
	}
	return rest, nil
}

// cutEitherFormat takes a format off the front, and tells which.
func cutEitherFormat(packed []byte) (rest []byte, pending bool, err error) {
	if rest, pending = bytes.CutPrefix(packed, []byte{formatPending}); !pending {
		rest, err = cutFormat(packed)
	}
	return rest, pending, err
}

// cutNumbers takes as many numbers off the front as fit into n.
func cutNumbers(packed []byte, n []int64) (rest []byte, err error) {
	for i := range n {
		var ok bool
		if n[i], packed, ok = cutNumber(packed); !ok {
			return nil, errFormat
		}
	}
	return packed, nil
}

// cutNumber takes a colon and up to 16 digits off the front.
func cutNumber(packed []byte) (n int64, rest []byte, ok bool) {
	digits, ok := bytes.CutPrefix(packed, []byte{':'})
	n, rest, some := cutDigits(digits)
	return n, rest, ok && some
}

// cutDigits takes up to 16 of them off the front.
func cutDigits(digits []byte) (n int64, rest []byte, ok bool) {
	end := 0
	for end < len(digits) && end < 16 && digits[end] >= '0' && digits[end] <= '9' {
		n, end = n*10+int64(digits[end]-'0'), end+1
	}
	return n, digits[end:], end > 0
}

// appendDouble writes a number below 2^53 as a script has it.
func appendDouble(packed []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(n)))
}

// doubleOf reads it, or returns -1 for anything else.
func doubleOf(eight []byte) int64 {
	f := math.Float64frombits(binary.LittleEndian.Uint64(eight))
	if !(f >= 0 && f < 1<<53) || f != math.Trunc(f) {
		return -1
	}
	return int64(f)
}

// cutText takes a colon and what stands before the next one, at least one byte, off the front.
func cutText(packed []byte) (text string, rest []byte, ok bool) {
	packed, ok = bytes.CutPrefix(packed, []byte{':'})
	end := bytes.IndexByte(packed, ':')
	if end < 0 {
		end = len(packed)
	}
	return string(packed[:end]), packed[end:], ok && end > 0
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// A record remembers that a request with an id was done.
type record struct {
	at     int64 // of the request
	turn   int64 // when its LeakyBucket lets it flow, at least at
	slotID string

	pending bool
}

// state is "1:at:turn", and ":slotID" where there is one; with a 2 in front where what
// it took is pending.
func (r record) state() State {
	packed := packNumbers(r.at, r.turn)
	if r.pending {
		packed[0] = formatPending
	}
	if r.slotID != "" {
		packed = append(append(packed, ':'), r.slotID...)
	}
	return State{Packed: packed, Full: r.at + RequestMemory.Microseconds()}
}

// unpackRecord reports whether there is a record that has not lapsed.
func unpackRecord(packed []byte, now int64) (r record, found bool, err error) {
	if packed == nil {
		return record{}, false, nil
	}
	rest, pending, err := cutEitherFormat(packed)
	if err != nil {
		return record{}, false, err
	}
	var n [2]int64
	if rest, err = cutNumbers(rest, n[:]); err != nil {
		return record{}, false, err
	}
	r = record{at: n[0], turn: n[1], pending: pending}
	if len(rest) > 0 {
		var ok bool
		if r.slotID, rest, ok = cutText(rest); !ok || len(rest) > 0 {
			return record{}, false, errFormat
		}
	}
	return r, now < r.at+RequestMemory.Microseconds(), nil
}
