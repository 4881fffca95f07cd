package session

import "encoding/binary"

// digits are in ASCII order, so that texts of one width sort as their numbers do.
const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Five digits at a time are the most that a 32-bit word holds.
const (
	radix      = uint64(len(digits))
	chunk      = 5
	chunkRadix = radix * radix * radix * radix * radix
	lowWord    = 1<<32 - 1
)

// encode62 writes the big-endian number, of whole 32-bit words, as exactly width
// base62 digits, which must be enough for it.
func encode62(number []byte, width int) string {
	n := make([]uint64, len(number)/4)
	for i := range n {
		n[i] = uint64(binary.BigEndian.Uint32(number[4*i:]))
	}
	text := make([]byte, width)
	for i := width; i > 0; {
		rest := uint64(0)
		for j, word := range n {
			v := rest<<32 | word
			n[j], rest = v/chunkRadix, v%chunkRadix
		}
		for range min(chunk, i) {
			i--
			text[i], rest = digits[rest%radix], rest/radix
		}
	}
	return string(text)
}

// fits62 reports whether the text consists of base62 digits and is a number of at
// most so many 32-bit words. Texts of one width that fit are one to one with numbers.
func fits62(text string, words int) bool {
	n := make([]uint64, words)
	for text != "" {
		value, scale := uint64(0), uint64(1)
		part := text[:min(chunk, len(text))]
		for i := range len(part) {
			d, ok := digit(part[i])
			if !ok {
				return false
			}
			value, scale = value*radix+d, scale*radix
		}
		for j := words - 1; j >= 0; j-- {
			v := n[j]*scale + value
			n[j], value = v&lowWord, v>>32
		}
		if value != 0 {
			return false
		}
		text = text[len(part):]
	}
	return true
}

// digit is the value of a base62 digit.
func digit(c byte) (value uint64, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return uint64(c - '0'), true
	case 'A' <= c && c <= 'Z':
		return uint64(c-'A') + 10, true
	case 'a' <= c && c <= 'z':
		return uint64(c-'a') + 36, true
	}
	return 0, false
}
