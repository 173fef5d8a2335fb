package helper

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.step.sm/crypto/kms/apiv1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys"
	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// service is a cloud's key service in this process, as Smallstep's KMS shows one.
type service struct {
	keys    map[string]crypto.Signer
	err     error
	version string
}

func (s *service) GetPublicKey(r *apiv1.GetPublicKeyRequest) (crypto.PublicKey, error) {
	if s.err != nil {
		return nil, s.err
	}
	if key := s.keys[r.Name]; key != nil {
		return key.Public(), nil
	}
	return nil, errors.New("rpc error: code = NotFound desc = no such key")
}

func (s *service) CreateKey(r *apiv1.CreateKeyRequest) (*apiv1.CreateKeyResponse, error) {
	key, err := keys.Generate(signer.ECDSAP256)
	if err != nil {
		return nil, err
	}
	name := r.Name + s.version
	if s.keys[name] == nil {
		s.keys[name] = key
	}
	return &apiv1.CreateKeyResponse{Name: name}, nil
}

func (s *service) CreateSigner(r *apiv1.CreateSignerRequest) (crypto.Signer, error) {
	if key := s.keys[r.SigningKey]; key != nil {
		return key, nil
	}
	return nil, errors.New("rpc error: code = NotFound desc = no such key")
}

func (*service) Close() error { return nil }

func newCloud() (*cloud, *service) {
	s := &service{keys: map[string]crypto.Signer{}, version: "/cryptoKeyVersions/1"}
	return &cloud{kms: s, form: forms[apiv1.CloudKMS]}, s
}

func code(err error) wire.Code {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Code
	}
	return ""
}

func TestKeysOfAService(t *testing.T) {
	c, s := newCloud()
	const key = "projects/p/locations/l/keyRings/r/cryptoKeys/root"
	if _, err := c.find(key); code(err) != wire.NoKey {
		t.Errorf("find: %v", err)
	}
	if err := c.delete(key); err != nil {
		t.Errorf("delete of none: %v", err)
	}
	uri, err := c.make(key, apiv1.ECDSAWithSHA256, 0)
	if err != nil || uri != "cloudkms:"+key+"/cryptoKeyVersions/1" {
		t.Errorf("make: %q, %v", uri, err)
	}
	if found, err := c.find(key); err != nil || found != uri {
		t.Errorf("find: %q, %v", found, err)
	}
	if _, err := c.make(key, apiv1.ECDSAWithSHA256, 0); code(err) != wire.KeyExists {
		t.Errorf("make of one that is there: %v", err)
	}
	if err := c.delete(key); code(err) != wire.Unsuitable || !strings.Contains(err.Error(), "gcloud kms keys versions destroy") {
		t.Errorf("delete: %v", err)
	}
	// Another process makes the key between the look and the making.
	s.version = "/cryptoKeyVersions/2"
	if _, err := c.make(key+"2", apiv1.ECDSAWithSHA256, 0); code(err) != wire.KeyExists {
		t.Errorf("make of a second version: %v", err)
	}
	for text, want := range map[string]wire.Code{
		"code = PermissionDenied desc = no": wire.Refused, "connection refused": wire.Away, "AccessDeniedException: x": wire.Refused,
	} {
		s.err = errors.New(text)
		for _, err := range []error{second(c.find(key)), second(c.make(key, apiv1.ECDSAWithSHA256, 0)), c.delete(key)} {
			if code(err) != want {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

func TestServiceThatIsNotBuiltIn(t *testing.T) {
	_, err := openCloud("otherkms")(t.Context(), &wire.Store{URI: "otherkms:"})
	if code(err) != wire.Away || !strings.Contains(err.Error(), "not built for otherkms") {
		t.Errorf("got %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestChooseKey(t *testing.T) {
	private, public := object{class: privateKey, id: []byte{1}}, object{class: publicKey, id: []byte{1}}
	other := object{class: publicKey, id: []byte{2}}
	for name, tc := range map[string]struct {
		objects []object
		code    wire.Code
		says    string
	}{
		"a pair":                        {[]object{public, private}, "", ""},
		"a pair and half of another":    {[]object{other, public, private}, "", ""},
		"none":                          {nil, wire.NoKey, `no key with the label "root"`},
		"half":                          {[]object{private, other}, wire.Refused, "no public key"},
		"the public half":               {[]object{public}, wire.Refused, "without a private key"},
		"two":                           {[]object{private, public, private}, wire.Refused, "2 private keys"},
		"no id":                         {[]object{{class: privateKey}, {class: publicKey}}, wire.Refused, "CKA_ID"},
		"a secret key":                  {[]object{{class: secretKey}}, wire.Refused, "another kind, a secret key"},
		"a pair beside of a secret key": {[]object{{class: secretKey}, private, public}, "", ""},
	} {
		id, err := chooseKey("root", tc.objects)
		if code(err) != tc.code || err != nil && !strings.Contains(err.Error(), tc.says) || err == nil && !bytes.Equal(id, private.id) {
			t.Errorf("%s: %x, %v", name, id, err)
		}
	}
}

func TestPINIsKnownByItsDigest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(file, []byte(" 1234\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &wire.Store{PINFile: file, Salt: []byte("salt")}
	pin, digest, err := readPIN(s)
	if err != nil || pin != "1234" || len(digest) != 32 {
		t.Fatalf("%q, %x, %v", pin, digest, err)
	}
	s.RefusedPIN = digest
	if _, _, err := readPIN(s); code(err) != wire.Refused {
		t.Errorf("a refused PIN: %v", err)
	}
	s.Salt = []byte("other")
	if _, _, err := readPIN(s); err != nil {
		t.Errorf("the digest is of the PIN alone: %v", err)
	}
}

// requests are well-formed messages of a ca, one after the other.
func requests(t testing.TB, list ...wire.Request) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, r := range list {
		if err := wire.Write(&b, r); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

var fakeOpeners = map[string]opener{"cloudkms": func(context.Context, *wire.Store) (store, error) {
	c, _ := newCloud()
	return c, nil
}}

func TestRequestsOutOfOrder(t *testing.T) {
	for name, list := range map[string][]wire.Request{
		"before anything is open": {{ID: 1, Op: wire.Sign}},
		"an unknown type":         {{ID: 1, Op: wire.Open, Store: &wire.Store{Type: "tpmkms"}}},
		"open without a store":    {{ID: 1, Op: wire.Open}},
		"an unknown operation": {{ID: 9, Op: wire.Open, Store: &wire.Store{Type: "cloudkms"}},
			{ID: 1, Op: "export"}},
		"open twice": {{ID: 9, Op: wire.Open, Store: &wire.Store{Type: "cloudkms"}},
			{ID: 1, Op: wire.Open, Store: &wire.Store{Type: "cloudkms"}}},
		"a digest that is too short": {{ID: 9, Op: wire.Open, Store: &wire.Store{Type: "cloudkms"}},
			{ID: 1, Op: wire.Sign, Digest: []byte("x"), Hash: uint(crypto.SHA256)}},
		"an unknown algorithm": {{ID: 9, Op: wire.Open, Store: &wire.Store{Type: "cloudkms"}},
			{ID: 1, Op: wire.Make, Key: "a", Algorithm: "RSA-512"}},
	} {
		in, feed := io.Pipe()
		out, said := io.Pipe()
		go func() {
			_ = serve(in, said, fakeOpeners)
			_ = said.Close()
		}()
		go func() { _, _ = feed.Write(requests(t, list...)) }()
		var hello wire.Hello
		if err := wire.Read(out, &hello); err != nil || hello.Version != wire.Version {
			t.Fatalf("%s: %+v, %v", name, hello, err)
		}
		for range list {
			var r wire.Response
			if err := wire.Read(out, &r); err != nil || (r.Error == nil) != (r.ID == 9) {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
		}
		_ = feed.Close()
	}
}

// hung is a store whose module never returns.
type hung struct{ store }

func (hung) find(string) (string, error) { select {} }

// If the ca is gone, so is the helper, whatever a module does.
func TestEndOfInputEndsAHelperThatHangs(t *testing.T) {
	in, feed := io.Pipe()
	done := make(chan error, 1)
	open := func(context.Context, *wire.Store) (store, error) { return hung{}, nil }
	go func() { done <- serve(in, io.Discard, map[string]opener{"hung": open}) }()
	list := []wire.Request{{ID: 1, Op: wire.Open, Store: &wire.Store{Type: "hung"}}}
	for range maxInFlight + 8 {
		list = append(list, wire.Request{ID: 2, Op: wire.Find})
	}
	if _, err := feed.Write(requests(t, list...)); err != nil {
		t.Fatal(err)
	}
	_ = feed.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Patience):
		t.Error("the helper goes on")
	}
}

func FuzzServe(f *testing.F) {
	opened := wire.Request{ID: 1, Op: wire.Open, Store: &wire.Store{Type: "cloudkms", URI: "cloudkms:"}}
	f.Add(requests(f, opened, wire.Request{ID: 2, Op: wire.Make, Key: "a", Algorithm: "ECDSA-P256"},
		wire.Request{ID: 3, Op: wire.Find, Key: "a"}))
	f.Add(requests(f, opened, wire.Request{ID: 4, Op: wire.Sign, URI: "x", Digest: make([]byte, 32), Hash: uint(crypto.SHA256)}))
	f.Add(requests(f, opened, wire.Request{ID: 5, Op: wire.Delete, Key: "a"}))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_ = serve(bytes.NewReader(text), io.Discard, fakeOpeners)
	})
}
