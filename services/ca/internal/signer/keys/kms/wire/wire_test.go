package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessagesAreReadAsTheyWereWritten(t *testing.T) {
	var pipe bytes.Buffer
	request := Request{ID: 7, Op: Sign, URI: "pkcs11:id=01;object=root", Digest: []byte{1, 2}, Hash: 5, PSS: true, SaltLength: -1}
	response := Response{ID: 7, Error: Errorf(Refused, "%s", "no")}
	if err := errors.Join(Write(&pipe, request), Write(&pipe, response)); err != nil {
		t.Fatal(err)
	}
	var gotRequest Request
	var gotResponse Response
	if err := errors.Join(Read(&pipe, &gotRequest), Read(&pipe, &gotResponse)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(request, gotRequest) + cmp.Diff(response, gotResponse); d != "" {
		t.Error(d)
	}
	if err := Read(&pipe, &gotRequest); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadMessages(t *testing.T) {
	for text, says := range map[string]string{
		"\x00\x00\x00\x05{}":     "half a message",
		"\x00\x00\x00":           "unexpected EOF",
		"\xff\xff\xff\xff{}":     "longer than",
		"\x00\x00\x00\x06secret": "not as expected",
	} {
		var r Response
		err := Read(strings.NewReader(text), &r)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := Write(io.Discard, Request{Digest: make([]byte, maxMessage)}); err == nil {
		t.Error("a message that nobody reads was written")
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	for _, m := range []any{Hello{Version: Version, Types: []string{"pkcs11"}}, Response{ID: 1, URI: "a", PublicKey: []byte{1}},
		Response{ID: 2, Error: Errorf(Lost, "gone")}} {
		b.Reset()
		if err := Write(&b, m); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Response
		if Read(bytes.NewReader(text), &r) == nil {
			if err := Write(io.Discard, r); err != nil && len(text) < maxMessage/8 {
				t.Error(err)
			}
		}
	})
}
