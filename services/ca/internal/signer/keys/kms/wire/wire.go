// Package wire is what the ca and its helper program ca-kms say to each other over the helper's standard input and
// output. Each message is a length of four bytes, big-endian, and so many bytes of JSON. The helper says Hello first;
// then the ca sends Requests, of which each is answered by one Response with its ID, in any order. The helper ends when
// its input does.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Version of the messages; ca and helper of different versions do not work together.
const Version = 1

// maxMessage bounds a message in bytes: the longest has a public RSA key and its URI.
const maxMessage = 64 << 10

// Hello is the helper's first message.
type Hello struct {
	Version int `json:"version"`
	// Types of key stores that the helper was built with.
	Types []string `json:"types"`
}

// Op is what a Request asks for.
type Op string

// The operations. Open comes once, first.
const (
	Open   Op = "open"
	Make   Op = "make"
	Find   Op = "find"
	Delete Op = "delete"
	Sign   Op = "sign"
)

// Request is one message of the ca.
type Request struct {
	ID uint64 `json:"id"`
	Op Op     `json:"op"`
	// Store is set for Open.
	Store *Store `json:"store,omitempty"`
	// Key is the name of a key, prefix included, for Make, Find and Delete.
	Key string `json:"key,omitempty"`
	// Algorithm is a signer.Algorithm, for Make.
	Algorithm string `json:"algorithm,omitempty"`
	// URI is that of a Response, for Sign.
	URI string `json:"uri,omitempty"`
	// Digest is what Sign signs, and Hash the crypto.Hash that made it.
	Digest []byte `json:"digest,omitempty"`
	Hash   uint   `json:"hash,omitempty"`
	// PSS is set for RSA-PSS, with SaltLength as in rsa.PSSOptions.
	PSS        bool `json:"pss,omitempty"`
	SaltLength int  `json:"saltLength,omitempty"`
}

// Store says which keys the helper opens. It has no secrets.
type Store struct {
	Type    string `json:"type"`
	URI     string `json:"uri"`
	Module  string `json:"module,omitempty"`
	PINFile string `json:"pinFile,omitempty"`
	// Salt makes digests of PINs of one ca; RefusedPIN is the digest of a PIN that the token refused. The helper does
	// not try it again.
	Salt       []byte `json:"salt,omitempty"`
	RefusedPIN []byte `json:"refusedPIN,omitempty"`
}

// Response is one message of the helper.
type Response struct {
	ID    uint64 `json:"id"`
	Error *Error `json:"error,omitempty"`
	// URI and PublicKey, in PKIX DER, are of a key that was made or found.
	URI       string `json:"uri,omitempty"`
	PublicKey []byte `json:"publicKey,omitempty"`
	Signature []byte `json:"signature,omitempty"`
}

// Code says what kind of error it is.
type Code string

// The codes.
const (
	// NoKey and KeyExists are signer.ErrNoKey and signer.ErrKeyExists.
	NoKey     Code = "no-key"
	KeyExists Code = "key-exists"
	// Away means that the token or service cannot be reached.
	Away Code = "away"
	// Lost means that a session has ended. Another helper may do better.
	Lost Code = "lost"
	// Busy means that others make the same key at the same time.
	Busy Code = "busy"
	// Refused means that an operator must change something.
	Refused Code = "refused"
	// Unsuitable means that keys of this type cannot do that.
	Unsuitable Code = "unsuitable"
)

// Error is why a Request was not done. Its text names no PIN.
type Error struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
	// RefusedPIN is the digest of the PIN that the token refused.
	RefusedPIN []byte `json:"refusedPIN,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Write writes one message, by one call of w.
func Write(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("a message of %d bytes is longer than %d", len(body), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)) //nolint:gosec // bounded above
	return err
}

// Read reads one message. It is io.EOF if there is none.
func Read(r io.Reader, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxMessage {
		return fmt.Errorf("a message of %d bytes is longer than %d", length, maxMessage)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("half a message: %w", err)
	}
	if err := json.Unmarshal(body, message); err != nil {
		// The decoder's words could quote the message.
		return fmt.Errorf("a message of %d bytes that is not as expected", length)
	}
	return nil
}
