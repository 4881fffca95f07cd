package seal

import (
	"bytes"
	"crypto/aes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, KeySize) }

func mustNew(t testing.TB, keys ...[]byte) *Sealer {
	t.Helper()
	s, err := New(keys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func Example() {
	old, current := bytes.Repeat([]byte{1}, KeySize), bytes.Repeat([]byte{2}, KeySize)
	before, _ := New([][]byte{old})
	cursor := before.Seal("sessions", "acme", []byte("after ses_7"))

	sealer, _ := New([][]byte{old, current})
	text, err := sealer.Open("sessions", "acme", cursor)
	fmt.Printf("%s %v\n", text, err)
	_, err = sealer.Open("sessions", "other", cursor)
	fmt.Println(err)
	// Output:
	// after ses_7 <nil>
	// seal: not sealed here for this tenant and purpose
}

func TestRoundTrip(t *testing.T) {
	s := mustNew(t, key(1))
	for _, n := range []int{0, 1, 15, 16, 17, 32 << 10} {
		plaintext := bytes.Repeat([]byte{7}, n)
		sealed := s.Seal("p", "t", plaintext)
		got, err := s.Open("p", "t", sealed)
		if err != nil || !bytes.Equal(got, plaintext) {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
		if strings.Trim(sealed, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Errorf("%q is not base64url", sealed)
		}
		if sealed == s.Seal("p", "t", plaintext) {
			t.Errorf("%d bytes: the same text twice", n)
		}
	}
}

// Every byte of a sealed text counts, and so does every way to write it.
func TestTampering(t *testing.T) {
	s := mustNew(t, key(1), key(2))
	for _, plaintext := range []string{"", "a", "ab", "sixteen bytes id"} { // all lengths of base64's end
		sealed := s.Seal("p", "t", []byte(plaintext))
		refuse := func(why, text string) {
			t.Helper()
			if got, err := s.Open("p", "t", text); !errors.Is(err, ErrForged) || got != nil {
				t.Errorf("%s: %q, %v", why, got, err)
			}
		}
		raw, err := base64.RawURLEncoding.DecodeString(sealed)
		if err != nil {
			t.Fatal(err)
		}
		for i := range raw {
			for bit := range 8 {
				raw[i] ^= 1 << bit
				refuse(fmt.Sprintf("bit %d of byte %d", bit, i), base64.RawURLEncoding.EncodeToString(raw))
				raw[i] ^= 1 << bit
			}
		}
		for i := range sealed {
			for _, c := range "ABab01-_ =+/\n\r\x00é" {
				if string(c) != sealed[i:i+1] {
					refuse(fmt.Sprintf("character %d is %q", i, c), sealed[:i]+string(c)+sealed[i+1:])
				}
				refuse(fmt.Sprintf("%q before character %d", c, i), sealed[:i]+string(c)+sealed[i:])
			}
			refuse(fmt.Sprintf("the first %d characters", i), sealed[:i])
		}
		for _, more := range []string{"\n", "\r\n", "=", "==", "A", "AAAA"} {
			refuse(fmt.Sprintf("%q behind it", more), sealed+more)
		}
		if _, err := s.Open("p", "t", sealed); err != nil {
			t.Errorf("the text itself: %v", err)
		}
	}
}

func TestTenantAndPurposeBind(t *testing.T) {
	s := mustNew(t, key(1))
	sealed := s.Seal("ab", "c", []byte("x"))
	for _, at := range [][2]string{
		{"ab", "d"}, {"a", "c"}, {"", "c"}, {"ab", ""}, {"a", "bc"}, {"abc", ""}, {"", "abc"}, {"AB", "c"}, {"c", "ab"}, {"ab", "c\x00"}, {"ab1:c", ""},
	} {
		if _, err := s.Open(at[0], at[1], sealed); !errors.Is(err, ErrForged) {
			t.Errorf("purpose %q, tenant %q: %v", at[0], at[1], err)
		}
	}
}

func TestKeysChange(t *testing.T) {
	first, second, third := key(1), key(2), key(3)
	opens := func(text string, keys ...[]byte) bool {
		_, err := mustNew(t, keys...).Open("p", "t", text)
		return err == nil
	}
	old := mustNew(t, first).Seal("p", "t", []byte("x"))
	current := mustNew(t, first, second).Seal("p", "t", []byte("x"))
	steps := []struct {
		why  string
		text string
		keys [][]byte
		want bool
	}{
		{"an old key opens", old, [][]byte{first, second}, true},
		{"wherever it stands", old, [][]byte{second, first, third}, true},
		{"a key that is gone does not", old, [][]byte{second}, false},
		{"the last key sealed", current, [][]byte{second}, true},
		{"and not the one before it", current, [][]byte{first}, false},
		{"a key that never was does not", current, [][]byte{third}, false},
	}
	for _, step := range steps {
		if got := opens(step.text, step.keys...); got != step.want {
			t.Errorf("%s: %v", step.why, got)
		}
	}
}

func TestKeysAreChecked(t *testing.T) {
	for _, keys := range [][][]byte{nil, {}, {nil}, {key(1)[:16]}, {key(1), key(2)[:31]}, {append(key(1), 1)}} {
		if s, err := New(keys); err == nil || s != nil {
			t.Errorf("keys %v: %v", keys, err)
		} else if strings.Contains(err.Error(), "\x01\x01") || strings.Contains(err.Error(), "1 1 1") {
			t.Errorf("the error shows a key: %v", err)
		}
	}
}

// The published vectors: one key for each value of the bit that CMAC's mask hangs on.
func TestXAESVectors(t *testing.T) {
	const nonce = "ABCDEFGHIJKLMNOPQRSTUVWX"
	for _, c := range []struct {
		key        byte
		aad        string
		ciphertext string
	}{
		{1, "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"},
		{3, "c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"},
	} {
		ciphertext, err := hex.DecodeString(c.ciphertext)
		if err != nil {
			t.Fatal(err)
		}
		aead := derive(must(aes.NewCipher(key(c.key))), []byte(nonce[:halfNonce]))
		got, err := aead.Open(nil, nil, append([]byte(nonce[halfNonce:]), ciphertext...), []byte(c.aad))
		if err != nil || string(got) != "XAES-256-GCM" {
			t.Errorf("key %d: %q, %v", c.key, got, err)
		}
	}
}

// No formatter prints a key, or what it expands to.
func TestPrintingShowsNoKey(t *testing.T) {
	secret := []byte("canary-canary-canary-canary-32-b")
	s := mustNew(t, secret)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "sealer", s, "in", struct{ S *Sealer }{s})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "sealer", s)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&log, verb+verb, s, *s)
	}
	for _, form := range []string{"canary", hex.EncodeToString([]byte("canary")), "99 97 110 97 114 121", base64.StdEncoding.EncodeToString([]byte("canary"))} {
		if strings.Contains(strings.ToLower(log.String()), strings.ToLower(form)) {
			t.Errorf("printed as %q: %s", form, log.String())
		}
	}
}

// golden was sealed with key(2) for purpose p and tenant t: it opens in every version.
const golden = "AWIqp43kQQ3KDcVFVEUFtV6vZgb78NRgvV36C_-DAFuyxmt0j5DIqxu46R_lqyu4Qno"

// Each worker of a fuzz run is a process of its own, so the one text that opens must be fixed.
func FuzzOpen(f *testing.F) {
	s := mustNew(f, key(1), key(2))
	foreign := golden[:66] + "p"
	for _, text := range []string{"", "A", "AQ", golden, golden[:len(golden)-1], golden + "\n", foreign, strings.Repeat("A", 40), "AQ" + strings.Repeat("A", 60)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := s.Open("p", "t", text)
		if (err == nil) != (text == golden) || (err == nil) != (string(got) == "plaintext") {
			t.Errorf("%q opens as %q, %v", text, got, err)
		}
	})
}

func BenchmarkSealAndOpen(b *testing.B) {
	s := mustNew(b, key(1))
	plaintext := make([]byte, 16)
	for b.Loop() {
		if _, err := s.Open("p", "t", s.Seal("p", "t", plaintext)); err != nil {
			b.Fatal(err)
		}
	}
}
