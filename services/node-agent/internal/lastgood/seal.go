package lastgood

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"fairlead.dev/pkg/tlsconf"
)

// A sealed file is a header, which is readable and authenticated, and the encrypted contents:
//
//	magic (8) | time of sealing, seconds since 1970 (8) | binding (32) | salt (32) | AES-256-GCM: nonce, text, tag
//
// The key comes by HKDF-SHA-256 from the workload's private key, with the salt and the binding, so a file that was
// sealed for another proxy cannot be opened even by the same key.
const (
	magic      = "FLGOOD1\n"
	timeBytes  = 8
	saltBytes  = 32
	headerSize = len(magic) + timeBytes + sha256.Size + saltBytes
	// keyLabel begins the info of HKDF, which keeps this use of the private key apart from any other.
	keyLabel = "fairlead node-agent last-good configuration 1"
)

// Why a sealed file is not used.
var (
	ErrCorrupt = errors.New("not a sealed configuration, or one that was changed")
	ErrForeign = errors.New("sealed for another proxy, another identity or other roots")
	ErrOld     = errors.New("too old")
)

// Binding says whose configuration a sealed file holds. A file of another one is ErrForeign.
type Binding struct {
	// Identity is the workload's SPIFFE ID, Node the id of its Envoy, which contains its address.
	Identity, Node string
	// Roots is the PEM text of the root certificates that the workload trusts.
	Roots []byte
}

func (b Binding) digest() []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(b.Identity), []byte(b.Node), b.Roots} {
		h.Write(strconv.AppendInt(nil, int64(len(part)), 10))
		h.Write([]byte{':'})
		h.Write(part)
	}
	return h.Sum(nil)
}

// Secret is the secret to seal with: the private key of the workload's certificate. A key that cannot be exported, such
// as one in a device, is an error.
func Secret(m *tlsconf.Material) ([]byte, error) {
	if m.Certificate == nil {
		return nil, tlsconf.ErrNoCertificate
	}
	der, err := x509.MarshalPKCS8PrivateKey(m.Certificate.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	return der, nil
}

func aead(secret, salt, binding []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, secret, salt, keyLabel+string(binding), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts text for b.
func Seal(secret []byte, b Binding, at time.Time, text []byte) ([]byte, error) {
	header := make([]byte, 0, headerSize+len(text)+64)
	header = append(header, magic...)
	header = binary.BigEndian.AppendUint64(header, uint64(at.Unix()))
	header = append(header, b.digest()...)
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	header = append(header, salt...)
	sealer, err := aead(secret, salt, b.digest())
	if err != nil {
		return nil, err
	}
	return sealer.Seal(header, nil, text, header), nil
}

// Open returns the text of a sealed file and when it was sealed. A file that is further than maxAge from now, to either
// side because clocks jump, is ErrOld.
func Open(secret []byte, b Binding, now time.Time, maxAge time.Duration, file []byte) ([]byte, time.Time, error) {
	if len(file) < headerSize || !bytes.HasPrefix(file, []byte(magic)) {
		return nil, time.Time{}, ErrCorrupt
	}
	header, rest := file[:headerSize], file[headerSize:]
	seconds := binary.BigEndian.Uint64(header[len(magic):])
	binding, salt := header[len(magic)+timeBytes:headerSize-saltBytes], header[headerSize-saltBytes:]
	if !bytes.Equal(binding, b.digest()) {
		return nil, time.Time{}, ErrForeign
	}
	opener, err := aead(secret, salt, binding)
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := opener.Open(nil, nil, rest, header)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w, or sealed with another key", ErrCorrupt)
	}
	at := time.Unix(int64(seconds), 0)
	if age := now.Sub(at).Abs(); age > maxAge {
		return nil, time.Time{}, fmt.Errorf("%w: sealed at %s, at most %s are accepted", ErrOld, at.UTC().Format(time.RFC3339), maxAge)
	}
	return text, at, nil
}
