// Package seal decides whether a text that comes back is one that this service
// wrote, unaltered, for the same tenant and the same purpose.
//
// Callers hold such texts as cursors and stores hold them as answers to be given
// again. Neither can read or alter one, or use it in another tenant's name.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
)

// KeySize is the length of a key, in bytes.
const KeySize = 32

// ErrForged is the answer to every text that does not open.
var ErrForged = errors.New("seal: not sealed here for this tenant and purpose")

// A sealed text is, in base64url without padding: the format, half a nonce, the
// other half, the ciphertext, the tag.
const (
	format     = 1
	halfNonce  = 12
	headerSize = 1 + halfNonce
)

var encoding = base64.RawURLEncoding

// A Sealer seals and opens texts. It may be used by many goroutines at once.
type Sealer struct {
	keys []cipher.Block // AES-256; the last one seals, all of them open
}

// New makes a sealer of one or more keys of [KeySize] bytes. The last one seals
// and all of them open. To change keys takes two rounds over the nodes, since what
// one of them seals the others must open: give every node the new one in front of
// the old, where it only opens; once all have it move it behind, where it seals;
// drop the old one when nothing sealed with it matters any more.
func New(keys [][]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("seal: a key is required")
	}
	s := &Sealer{}
	for i, key := range keys {
		if len(key) != KeySize {
			return nil, fmt.Errorf("seal: key %d of %d has %d bytes, want %d", i+1, len(keys), len(key), KeySize)
		}
		s.keys = append(s.keys, must(aes.NewCipher(key)))
	}
	return s, nil
}

// Seal returns a text that only [Sealer.Open] with the same purpose and tenant
// turns back into the plaintext. It is base64url, about 4/3 of the plaintext and
// 55 characters long, and another one each time. The plaintext's length shows.
func (s *Sealer) Seal(purpose, tenant string, plaintext []byte) string {
	out := make([]byte, headerSize, headerSize+len(plaintext)+2*aes.BlockSize)
	out[0] = format
	_, _ = rand.Read(out[1:]) // never fails: the runtime stops the process instead
	aead := derive(s.keys[len(s.keys)-1], out[1:])
	sealed := aead.Seal(out, nil, plaintext, bind(purpose, tenant)) //nolint:gosec // no nonce given: this AEAD makes one
	return encoding.EncodeToString(sealed)
}

// Open returns what was sealed, or ErrForged where the text was altered, belongs
// to another tenant or purpose, or was sealed with a key that is gone.
func (s *Sealer) Open(purpose, tenant, sealed string) ([]byte, error) {
	raw, err := encoding.DecodeString(sealed)
	// Decoding skips line breaks and the last character's spare bits, so that
	// several texts would open as one.
	if err != nil || encoding.EncodeToString(raw) != sealed {
		return nil, ErrForged
	}
	if len(raw) < headerSize || raw[0] != format {
		return nil, ErrForged
	}
	header, body := raw[:headerSize], raw[headerSize:]
	for _, key := range s.keys {
		if plaintext, err := derive(key, header[1:]).Open(nil, nil, body, bind(purpose, tenant)); err == nil {
			return plaintext, nil
		}
	}
	return nil, ErrForged
}

// bind is what is authenticated beside the text: no two pairs of purpose and
// tenant are written alike.
func bind(purpose, tenant string) []byte {
	return fmt.Appendf(nil, "coordsvc seal %d %d:%s%d:%s", format, len(purpose), purpose, len(tenant), tenant)
}

// derive makes the key of one text, as XAES-256-GCM does (c2sp.org/XAES-256-GCM):
// AES-256-GCM under CMAC(key, first half of a 192-bit nonce), with the second
// half for its own. AES-GCM alone allows 2^32 random nonces, which an idempotent
// route at 1,000 requests a second uses up in 50 days; this allows 2^80.
func derive(key cipher.Block, half []byte) cipher.AEAD {
	var subkey [2 * aes.BlockSize]byte
	mask := cmacMask(key)
	for i := range 2 {
		block := subkey[i*aes.BlockSize:][:aes.BlockSize]
		copy(block, []byte{0, byte(i + 1), 'X', 0})
		copy(block[4:], half)
		subtle.XORBytes(block, block, mask[:])
		key.Encrypt(block, block)
	}
	return must(cipher.NewGCMWithRandomNonce(must(aes.NewCipher(subkey[:]))))
}

// cmacMask is CMAC's subkey K1 (NIST SP 800-38B, 6.1).
func cmacMask(key cipher.Block) (mask [aes.BlockSize]byte) {
	key.Encrypt(mask[:], mask[:])
	var carry byte
	for i := len(mask) - 1; i >= 0; i-- {
		mask[i], carry = mask[i]<<1|carry, mask[i]>>7
	}
	mask[len(mask)-1] ^= carry * 0b10000111
	return mask
}

// must unwraps what fails only on a wrong length, and all lengths here are fixed.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
