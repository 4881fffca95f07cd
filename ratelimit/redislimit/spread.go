package redislimit

import (
	"strings"
	"sync"
)

// slots is how many parts the keys of a Cluster fall into. Each master has a range of
// them, all about as long.
const slots = 16384

// crcTable is that of CRC-16/XMODEM, which a Cluster assigns slots by (Redis Cluster
// specification, appendix A).
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()

func crc16(crc uint16, text string) uint16 {
	for i := range len(text) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^text[i]]
	}
	return crc
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// steering has, for every slot, three letters of that CRC. Behind a text they move its
// slot by as much, in the sense of xor, from where three letters of the CRC 0 leave it.
var steering = sync.OnceValue(func() *[slots][3]byte {
	table := new([slots][3]byte)
	for _, a := range []byte(letters) {
		for _, b := range []byte(letters) {
			for _, c := range []byte(letters) {
				three := [3]byte{a, b, c}
				table[crc16(0, string(three[:]))%slots] = three
			}
		}
	}
	return table
})

// spread puts three letters behind the hash tag of a key, so that the shards of a bucket
// lie as far apart as slots can, the first where the whole bucket would. Whatever ranges
// of slots the masters have, of ranges that are equally long no two have numbers of
// shards that differ by more than one.
func spread(prefix, name string, shard, of int) string {
	before, after, _ := strings.Cut(name[len(prefix)+1:], "}")
	own := crc16(0, before)
	target := (int(own%slots) + shard*slots/of) % slots
	bare := crc16(own, "\x00\x00\x00")
	move := steering()[(bare^uint16(target))%slots] //nolint:gosec // below slots
	return name[:len(prefix)+1] + before + string(move[:]) + "}" + after
}
