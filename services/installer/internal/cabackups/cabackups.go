// Package cabackups makes backups of the ca of a mesh and brings its Secrets back. Make has the ca's own command
// encrypt what it has, so that no key leaves its container plain. Restore writes the Secrets of an archive into a
// namespace in which no ca runs. Commands of cli call both.
package cabackups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/proto/fairlead/contract"
)

// Limit is how many bytes Run may return: an archive in JSON.
const Limit = 3 * cabackup.MaxBytes

// Run runs `ca backup` where the ca runs, with what the ca runs with and these arguments, and returns what it prints.
type Run func(ctx context.Context, more []string) ([]byte, error)

// Make makes an archive that these recipients can decrypt.
func Make(ctx context.Context, run Run, recipients []string) (*cabackup.Sealed, error) {
	more := []string{"--summary"}
	for _, r := range recipients {
		more = append(more, "--recipient="+r)
	}
	text, err := run(ctx, more)
	if err != nil {
		return nil, err
	}
	sealed := &cabackup.Sealed{}
	reader := json.NewDecoder(bytes.NewReader(text))
	if err := reader.Decode(sealed); err != nil || !bytes.HasPrefix(sealed.Archive, []byte("age-encryption.org/")) {
		return nil, errors.New("the ca has not answered with a backup; is it older than this command?")
	}
	return sealed, nil
}

// MakeWithPassphrase makes an archive that a passphrase decrypts. The passphrase stays here: the ca encrypts for a key
// that lives as long as this call.
func MakeWithPassphrase(ctx context.Context, run Run, passphrase age.Recipient) (*cabackup.Sealed, error) {
	once, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	sealed, err := Make(ctx, run, []string{once.Recipient().String()})
	if err != nil {
		return nil, err
	}
	text, err := cabackup.Decrypt(sealed.Archive, once)
	if err != nil {
		return nil, err
	}
	sealed.Archive, err = cabackup.Encrypt(text, passphrase)
	return sealed, err
}

// recordEntry is the entry of a Secret that has the ca's record.
const recordEntry = "state.json"

// Target is where Secrets are restored.
type Target struct {
	API         typedcorev1.CoreV1Interface
	Namespace   string
	TrustDomain string
	// Force replaces the Secrets of a ca that is there.
	Force bool
}

// Restore writes the record, if it belongs into a Secret, and then the keys. It checks everything first. When it is
// interrupted, a ca that starts misses a key and does not go on, and Restore with Force does. The caller knows that no
// ca runs.
func Restore(ctx context.Context, a *cabackup.Archive, t Target) error {
	if err := t.check(a); err != nil {
		return err
	}
	existing := cabackup.Existing{Force: t.Force}
	found := map[string]*corev1.Secret{}
	places := make([]cabackup.Place, 0, len(a.Secrets)+1)
	if a.In != (cabackup.Place{}) {
		places = append(places, a.In)
	}
	for _, s := range a.Secrets {
		places = append(places, s.Place)
	}
	for _, place := range places {
		secret, err := t.get(ctx, place.Name)
		if err != nil {
			return err
		}
		if secret == nil {
			continue
		}
		found[place.Name] = secret
		if place == a.In {
			existing.Record = secret.Data[recordEntry]
		}
		for _, entry := range slices.Sorted(maps.Keys(secret.Data)) {
			if place == a.In && entry == recordEntry || strings.HasSuffix(entry, ".pem") {
				existing.Parts = append(existing.Parts, fmt.Sprintf("entry %s of Secret %s", entry, place))
			}
		}
	}
	restored, err := a.Restored(existing)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", t.Namespace, err)
	}
	if a.In != (cabackup.Place{}) {
		if err := t.write(ctx, a.In.Name, found[a.In.Name], map[string][]byte{recordEntry: restored}); err != nil {
			return err
		}
	}
	for _, s := range a.Secrets {
		if err := t.write(ctx, s.Name, found[s.Name], s.Data); err != nil {
			return err
		}
	}
	return nil
}

// check refuses an archive of another mesh, and Secrets of other namespaces: an archive alone does not say what may be
// written, because whoever knows the public key of a recipient can make one.
func (t Target) check(a *cabackup.Archive) error {
	if a.TrustDomain != t.TrustDomain {
		return fmt.Errorf("the archive is of trust domain %q, not of %q; correct --trust-domain, or take another archive", a.TrustDomain,
			t.TrustDomain)
	}
	places := []cabackup.Place{}
	if a.In != (cabackup.Place{}) {
		places = append(places, a.In)
	}
	for _, s := range a.Secrets {
		places = append(places, s.Place)
	}
	if len(places) == 0 {
		return errors.New("the archive has no Secrets: it is of a ca with a directory; restore it there with `ca restore` " +
			"(docs/guide/ca-backup.md)")
	}
	for _, p := range places {
		if p.Namespace != t.Namespace {
			return fmt.Errorf("the archive has Secret %s, and namespace %s is to be written; name the namespace that the ca had with "+
				"--istioNamespace", p, t.Namespace)
		}
	}
	return nil
}

// get returns a Secret that may be written; nil if there is none.
func (t Target) get(ctx context.Context, name string) (*corev1.Secret, error) {
	found, err := t.API.Secrets(t.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("read Secret %s/%s: %w", t.Namespace, name, err)
	case found.Type != corev1.SecretTypeOpaque && found.Type != "":
		return nil, fmt.Errorf("Secret %s/%s is of type %.80q, and not one of a ca; is the archive of this mesh?", t.Namespace, name, found.Type)
	}
	return found, nil
}

// write makes or changes a Secret. Its other entries stay.
func (t Target) write(ctx context.Context, name string, found *corev1.Secret, data map[string][]byte) error {
	var err error
	if found == nil {
		_, err = t.API.Secrets(t.Namespace).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.Namespace,
				Labels: map[string]string{"istio.io/config": "true", contract.ManagedByLabel: contract.ManagedByCA}},
			Type: corev1.SecretTypeOpaque, Data: data,
		}, metav1.CreateOptions{FieldManager: contract.ManagedByCA})
	} else {
		found = found.DeepCopy()
		if found.Data == nil {
			found.Data = map[string][]byte{}
		}
		maps.Copy(found.Data, data)
		_, err = t.API.Secrets(t.Namespace).Update(ctx, found, metav1.UpdateOptions{FieldManager: contract.ManagedByCA})
	}
	if err != nil {
		return fmt.Errorf("write Secret %s/%s: %w; what was restored so far is replaced with --force", t.Namespace, name, err)
	}
	return nil
}
