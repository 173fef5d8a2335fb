//go:build cgo

package helper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/pkcs11"
	"go.step.sm/crypto/kms/apiv1"
	_ "go.step.sm/crypto/kms/pkcs11" // registers itself
	"go.step.sm/crypto/kms/uri"

	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

func openPKCS11() opener { return openToken }

const (
	scheme = "pkcs11"
	// maxObjects of one label are looked at.
	maxObjects = 32
	// rounds of making a key that another process makes at the same time.
	rounds = 6
	// maxRoundWait bounds the random wait between two of them.
	maxRoundWait = 400 * time.Millisecond
	// settle is the time after which a process sees in the token what another one has written before.
	settle = 50 * time.Millisecond
	// retryFor is how long a token that is not there is looked for.
	retryFor = 800 * time.Millisecond
)

// token is a store in a PKCS#11 token, with a session of its own in which it looks for objects: Smallstep's KMS does
// not tell a label that several objects have. Key pairs have the key's name as CKA_LABEL and a random CKA_ID.
type token struct {
	kms apiv1.KeyManager

	// making is held while a key is made or deleted, mu while the session is used.
	making  sync.Mutex
	mu      sync.Mutex
	module  *pkcs11.Ctx
	session pkcs11.SessionHandle
}

// openToken logs in to the token, unless that could be the attempt that locks it.
func openToken(ctx context.Context, s *wire.Store) (store, error) {
	u, err := uri.ParseWithScheme(scheme, s.URI)
	if err != nil {
		return nil, wire.Errorf(wire.Refused, "uri: cannot be read")
	}
	if err := checkModule(s.Module); err != nil {
		return nil, err
	}
	pin, digest, err := readPIN(s)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for {
		opened, err := tryToken(ctx, s, u, pin, digest)
		// While another process logs in, a token may seem to be away for a moment. Such an attempt has shown no PIN.
		if err == nil || err.Code != wire.Away || time.Since(began) > retryFor {
			if err != nil {
				return nil, err
			}
			return opened, nil
		}
		time.Sleep(retryFor / 8)
	}
}

func tryToken(ctx context.Context, s *wire.Store, u *uri.URI, pin string, digest []byte) (*token, *wire.Error) {
	if err := checkToken(s, u); err != nil {
		return nil, err
	}
	u.Set("module-path", s.Module)
	kms, err := openKMS(ctx, apiv1.PKCS11, apiv1.Options{Type: apiv1.PKCS11, URI: u.String(), Pin: pin})
	if err != nil {
		return nil, explainLogin(s, digest, err)
	}
	t, refused := openSession(s, u, pin, digest)
	if refused != nil {
		_ = kms.Close()
		return nil, refused
	}
	t.kms = kms
	return t, nil
}

// openSession opens the session in which objects are looked for. The KMS has initialized the module and logged in; most
// modules have one such state for the process, and others, such as p11-kit's, one for each that loads them.
func openSession(s *wire.Store, u *uri.URI, pin string, digest []byte) (*token, *wire.Error) {
	module := pkcs11.New(s.Module)
	if module == nil {
		return nil, wire.Errorf(wire.Refused, "module: %s cannot be loaded", s.Module)
	}
	if err := module.Initialize(); err != nil && !is(err, pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED) {
		return nil, wire.Errorf(wire.Away, "module: %s does not start: %v", s.Module, err)
	}
	// Slots may have other numbers than before the KMS initialized the module.
	slot, flags, refused := findSlot(module, s, u)
	if refused != nil {
		return nil, refused
	}
	session, err := module.OpenSession(slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err != nil {
		return nil, wire.Errorf(wire.Away, "open a session: %v", err)
	}
	if flags&pkcs11.CKF_LOGIN_REQUIRED != 0 {
		if err := module.Login(session, pkcs11.CKU_USER, pin); err != nil && !is(err, pkcs11.CKR_USER_ALREADY_LOGGED_IN) {
			return nil, explainLogin(s, digest, err)
		}
	}
	return &token{module: module, session: session}, nil
}

// is tells the code of an error.
func is(err error, code uint) bool {
	has, ok := errors.AsType[pkcs11.Error](err)
	return ok && uint(has) == code
}

func checkModule(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wire.Errorf(wire.Refused, "module: %s does not exist; install the PKCS#11 module of the token's vendor, or correct the path", path)
	case err != nil:
		return wire.Errorf(wire.Refused, "module: %v", err)
	case !info.Mode().IsRegular():
		return wire.Errorf(wire.Refused, "module: %s is not a regular file", path)
	}
	return nil
}

// checkToken looks for the token before there is a login, and refuses one whose PIN is locked or has one attempt left.
// It leaves the module as it was.
func checkToken(s *wire.Store, u *uri.URI) *wire.Error {
	module := pkcs11.New(s.Module)
	if module == nil {
		return wire.Errorf(wire.Refused, "module: %s cannot be loaded; it is no PKCS#11 module for this machine, or a library that it "+
			"needs is missing (ldd %s)", s.Module, s.Module)
	}
	defer module.Destroy()
	if err := module.Initialize(); err != nil {
		return wire.Errorf(wire.Away, "module: %s does not start: %v; see its own configuration and the daemon it needs", s.Module, err)
	}
	defer func() { _ = module.Finalize() }()
	_, flags, refused := findSlot(module, s, u)
	if refused != nil {
		return refused
	}
	return checkPIN(s, flags)
}

// findSlot returns the slot and the flags of the token that a URI names.
func findSlot(module *pkcs11.Ctx, s *wire.Store, u *uri.URI) (slot, flags uint, refused *wire.Error) {
	slots, err := module.GetSlotList(true)
	if err != nil {
		return 0, 0, wire.Errorf(wire.Away, "list tokens: %v", err)
	}
	var labels []string
	for _, slot := range slots {
		info, err := module.GetTokenInfo(slot)
		if err != nil || info.Flags&pkcs11.CKF_TOKEN_INITIALIZED == 0 {
			continue
		}
		labels = append(labels, strconv.Quote(info.Label))
		id, _ := strconv.ParseUint(u.Get("slot-id"), 10, 64)
		if u.Get("token") == info.Label && info.Label != "" || u.Get("serial") == info.SerialNumber && info.SerialNumber != "" ||
			u.Get("slot-id") != "" && id == uint64(slot) {
			return slot, info.Flags, nil
		}
	}
	return 0, 0, wire.Errorf(wire.Away, "the token is not there; module %s has the tokens [%s]", s.Module, strings.Join(labels, ", "))
}

// checkPIN decides by the flags of a token whether to log in.
func checkPIN(s *wire.Store, flags uint) *wire.Error {
	const reset = "log in with the right PIN by another program, which resets the count (pkcs11-tool --login --list-objects)"
	switch {
	case flags&pkcs11.CKF_LOGIN_REQUIRED == 0:
		return nil
	case s.PINFile == "":
		return wire.Errorf(wire.Refused, "pinFile: is required, because the token wants a PIN; name the file that has it")
	case flags&pkcs11.CKF_USER_PIN_INITIALIZED == 0:
		return wire.Errorf(wire.Refused, "the token's user has no PIN yet; set one (pkcs11-tool --init-pin)")
	case flags&pkcs11.CKF_USER_PIN_LOCKED != 0:
		return wire.Errorf(wire.Refused, "the token has locked the PIN after too many wrong ones; unlock it as its security officer "+
			"(pkcs11-tool --unlock-pin, --init-pin)")
	case flags&pkcs11.CKF_USER_PIN_FINAL_TRY != 0:
		return wire.Errorf(wire.Refused, "one more wrong PIN locks the token, so the ca does not try; "+reset)
	}
	return nil
}

// explainLogin says why the KMS could not be opened.
func explainLogin(s *wire.Store, digest []byte, err error) *wire.Error {
	code, ok := errors.AsType[pkcs11.Error](err)
	if !ok {
		return wire.Errorf(wire.Away, "open the token: %v", err)
	}
	switch uint(code) {
	case pkcs11.CKR_PIN_INCORRECT, pkcs11.CKR_PIN_INVALID, pkcs11.CKR_PIN_LEN_RANGE:
		return refusedPIN(s, digest)
	case pkcs11.CKR_PIN_LOCKED:
		refused := wire.Errorf(wire.Refused, "the token has locked the PIN after too many wrong ones; unlock it as its security officer")
		refused.RefusedPIN = digest
		return refused
	case pkcs11.CKR_PIN_EXPIRED:
		refused := wire.Errorf(wire.Refused, "the PIN has expired; set another on the token, and write it into %s", s.PINFile)
		refused.RefusedPIN = digest
		return refused
	}
	return wire.Errorf(wire.Away, "open the token: %v", code)
}

// lasting errors of a token do not go away with another session.
var lasting = []uint{pkcs11.CKR_MECHANISM_INVALID, pkcs11.CKR_MECHANISM_PARAM_INVALID, pkcs11.CKR_KEY_FUNCTION_NOT_PERMITTED,
	pkcs11.CKR_KEY_TYPE_INCONSISTENT, pkcs11.CKR_KEY_SIZE_RANGE, pkcs11.CKR_TOKEN_WRITE_PROTECTED, pkcs11.CKR_DEVICE_MEMORY,
	pkcs11.CKR_ATTRIBUTE_TYPE_INVALID, pkcs11.CKR_ATTRIBUTE_VALUE_INVALID, pkcs11.CKR_ATTRIBUTE_READ_ONLY, pkcs11.CKR_TEMPLATE_INCOMPLETE,
	pkcs11.CKR_TEMPLATE_INCONSISTENT, pkcs11.CKR_CURVE_NOT_SUPPORTED, pkcs11.CKR_FUNCTION_NOT_SUPPORTED, pkcs11.CKR_ACTION_PROHIBITED}

func (t *token) explain(err error) *wire.Error {
	if said, ok := errors.AsType[*wire.Error](err); ok {
		return said
	}
	code, ok := errors.AsType[pkcs11.Error](err)
	switch {
	case !ok:
		return wire.Errorf(wire.Refused, "%v", err)
	case slices.Contains(lasting, uint(code)):
		return wire.Errorf(wire.Refused, "the token says %v; see what mechanisms, keys and room it has", code)
	}
	return wire.Errorf(wire.Lost, "the token says %v", code)
}

func (t *token) manager() apiv1.KeyManager { return t.kms }

// keyURI names a key pair for the KMS.
func keyURI(label string, id []byte) string {
	return uri.New(scheme, url.Values{"object": {label}, "id": {hex.EncodeToString(id)}}).String()
}

func (t *token) find(label string) (string, error) {
	objects, err := t.objects(label)
	if err != nil {
		return "", t.explain(err)
	}
	id, err := chooseKey(label, objects)
	if err != nil {
		return "", err
	}
	return keyURI(label, id), nil
}

// objects returns the keys that have a label.
func (t *token) objects(label string) ([]object, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.module.FindObjectsInit(t.session, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_LABEL, label)}); err != nil {
		return nil, err
	}
	handles, _, err := t.module.FindObjects(t.session, maxObjects)
	if err = errors.Join(err, t.module.FindObjectsFinal(t.session)); err != nil {
		return nil, err
	}
	var found []object
	for _, handle := range handles {
		o, err := t.object(handle)
		if is(err, pkcs11.CKR_OBJECT_HANDLE_INVALID) {
			continue // another process has deleted it meanwhile
		}
		if err != nil {
			return nil, err
		}
		if o.class != "" {
			found = append(found, o)
		}
	}
	return found, nil
}

// object describes a key. The class is empty for others: certificates and data may have the label of a key.
func (t *token) object(handle pkcs11.ObjectHandle) (object, error) {
	values, err := t.module.GetAttributeValue(t.session, handle, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, nil)})
	if err != nil {
		return object{}, err
	}
	o := object{handle: uint(handle)}
	switch number(values[0].Value) {
	case pkcs11.CKO_PRIVATE_KEY:
		o.class = privateKey
	case pkcs11.CKO_PUBLIC_KEY:
		o.class = publicKey
	case pkcs11.CKO_SECRET_KEY:
		o.class = secretKey
	default:
		return o, nil
	}
	values, err = t.module.GetAttributeValue(t.session, handle, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_ID, nil)})
	if err != nil {
		return object{}, err
	}
	o.id = values[0].Value
	return o, nil
}

// number reads a CK_ULONG, which has the byte order of the machine; classes are less than 256.
func number(value []byte) uint {
	for _, b := range value {
		if b != 0 {
			return uint(b)
		}
	}
	return 0
}

// make makes a key pair. Tokens do not refuse a second pair of one label: of processes that make one at the same time
// each that finds another's pair removes its own. If all have done so they try again, after times that differ.
func (t *token) make(label string, algorithm apiv1.SignatureAlgorithm, bits int) (string, error) {
	t.making.Lock()
	defer t.making.Unlock()
	for range rounds {
		objects, err := t.objects(label)
		if err != nil {
			return "", t.explain(err)
		}
		if len(objects) > 0 {
			return "", wire.Errorf(wire.KeyExists, "the token has a %s with the label %q", objects[0].class, label)
		}
		id := make([]byte, 16)
		if _, err := rand.Read(id); err != nil {
			return "", err
		}
		made := keyURI(label, id)
		if _, err := t.kms.CreateKey(&apiv1.CreateKeyRequest{Name: made, SignatureAlgorithm: algorithm, Bits: bits}); err != nil {
			return "", t.explain(err)
		}
		objects, alone, err := t.alone(label, made)
		if err != nil {
			return "", t.explain(err)
		}
		if alone {
			return made, nil
		}
		own := func(o object) bool { return string(o.id) == string(id) }
		if err := t.destroy(slices.DeleteFunc(objects, func(o object) bool { return !own(o) })); err != nil {
			return "", t.explain(err)
		}
		wait, err := rand.Int(rand.Reader, big.NewInt(int64(maxRoundWait)))
		if err != nil {
			return "", err
		}
		time.Sleep(time.Duration(wait.Int64()))
	}
	return "", wire.Errorf(wire.Busy, "others make a key with the label %q at the same time", label)
}

// alone tells whether a key pair that was just made is the only one of its label, and returns what has the label. It
// looks twice, for a token may show what another process has written a moment late.
func (t *token) alone(label, made string) (objects []object, alone bool, err error) {
	for look := range 2 {
		if look > 0 {
			time.Sleep(settle)
		}
		if objects, err = t.objects(label); err != nil {
			return nil, false, err
		}
		id, refused := chooseKey(label, objects)
		if alone = refused == nil && keyURI(label, id) == made; !alone {
			break
		}
	}
	return objects, alone, nil
}

// delete destroys the key pairs of a label, and halves of such. Objects of other kinds stay.
func (t *token) delete(label string) error {
	t.making.Lock()
	defer t.making.Unlock()
	objects, err := t.objects(label)
	if err != nil {
		return t.explain(err)
	}
	if !slices.ContainsFunc(objects, func(o object) bool { return o.class != secretKey }) {
		return wire.Errorf(wire.NoKey, "the token has no key with the label %q", label)
	}
	if err := t.destroy(objects); err != nil {
		return t.explain(err)
	}
	return nil
}

func (t *token) destroy(objects []object) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kind := range []class{privateKey, publicKey} {
		for _, o := range objects {
			if o.class != kind {
				continue
			}
			err := t.module.DestroyObject(t.session, pkcs11.ObjectHandle(o.handle))
			if err != nil && !is(err, pkcs11.CKR_OBJECT_HANDLE_INVALID) {
				return fmt.Errorf("destroy the %s: %w", kind, err)
			}
		}
	}
	return nil
}
