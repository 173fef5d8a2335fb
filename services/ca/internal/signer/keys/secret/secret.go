// Package secret is the KeyManager of keys in one Kubernetes Secret, which all replicas of the ca use: entry NAME.pem,
// PEM of PKCS#8. Each write names the version that it changes, so that of two replicas that make one key the second is
// told that there is one. Entries that others wrote into the Secret stay.
package secret

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys"
)

const (
	// maxBytes of all entries leave room below the 1 MiB that Kubernetes allows a Secret.
	maxBytes = 768 << 10
	// requestTimeout bounds one request to the API server.
	requestTimeout = 10 * time.Second
	// maxAnswer bounds an error of the API server that is repeated, in bytes.
	maxAnswer = 512
)

// patience with replicas that write at the same time: about two seconds in all.
var patience = wait.Backoff{Steps: 12, Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1}

// Config names the Secret.
type Config struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Check returns all that is wrong with the configuration.
func (c *Config) Check() error {
	var errs []error
	switch problems := validation.IsDNS1123Label(c.Namespace); {
	case c.Namespace == "":
		errs = append(errs, errors.New("namespace: is required; name the ca's own namespace"))
	case len(problems) > 0:
		errs = append(errs, fmt.Errorf("namespace: %.80q: %s", c.Namespace, problems[0]))
	}
	switch problems := validation.IsDNS1123Subdomain(c.Name); {
	case c.Name == "":
		errs = append(errs, errors.New("name: is required; name the Secret that gets the keys"))
	case len(problems) > 0:
		errs = append(errs, fmt.Errorf("name: %.80q: %s", c.Name, problems[0]))
	}
	return errors.Join(errs...)
}

// Manager is a signer.KeyManager. Its errors about the API server are of type *signer.Error.
type Manager struct {
	cfg Config
	api kubernetes.Interface
}

var _ signer.KeyManager = (*Manager)(nil)

// New returns the KeyManager of a Secret, of which it asks nothing yet.
func New(cfg Config, api kubernetes.Interface) *Manager { return &Manager{cfg: cfg, api: api} }

// Shared implements signer.KeyManager.
func (*Manager) Shared() bool { return true }

func entry(name string) string { return name + ".pem" }

// at names an entry in errors.
func (m *Manager) at(name string) string {
	return fmt.Sprintf("key %s of Secret %s/%s", entry(name), m.cfg.Namespace, m.cfg.Name)
}

// Make implements signer.KeyManager.
func (m *Manager) Make(ctx context.Context, name string, a signer.Algorithm) (crypto.Signer, error) {
	if err := errors.Join(keys.CheckName(name), keys.CheckAlgorithm(a)); err != nil {
		return nil, err
	}
	key, err := keys.Generate(a)
	if err != nil {
		return nil, err
	}
	text, err := keys.Encode(key)
	if err != nil {
		return nil, err
	}
	err = m.change(ctx, func(data map[string][]byte) (bool, error) {
		if _, taken := data[entry(name)]; taken {
			return false, fmt.Errorf("%s: %w", m.at(name), signer.ErrKeyExists)
		}
		size := len(text)
		for _, value := range data {
			size += len(value)
		}
		if size > maxBytes {
			return false, fmt.Errorf("%s: with it the Secret would have %d bytes, more than %d; remove entries that nobody uses", m.at(name),
				size, maxBytes)
		}
		data[entry(name)] = text
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// Find implements signer.KeyManager.
func (m *Manager) Find(ctx context.Context, name string) (crypto.Signer, error) {
	if err := keys.CheckName(name); err != nil {
		return nil, err
	}
	found, err := m.get(ctx)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s: %w", m.at(name), signer.ErrNoKey)
	}
	if err != nil {
		return nil, m.explain("read", err)
	}
	text, ok := found.Data[entry(name)]
	if !ok {
		return nil, fmt.Errorf("%s: %w", m.at(name), signer.ErrNoKey)
	}
	key, err := keys.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore the entry from a backup, or remove it to get a new key", m.at(name), err)
	}
	return key, nil
}

// Delete implements signer.KeyManager.
func (m *Manager) Delete(ctx context.Context, name string) error {
	if err := keys.CheckName(name); err != nil {
		return err
	}
	return m.change(ctx, func(data map[string][]byte) (bool, error) {
		_, there := data[entry(name)]
		delete(data, entry(name))
		return there, nil
	})
}

// change reads the Secret, has edit change its entries, and writes it if edit returns true. If another replica wrote in
// between it begins again.
func (m *Manager) change(ctx context.Context, edit func(data map[string][]byte) (bool, error)) error {
	for waits := patience; ; {
		err := m.changeOnce(ctx, edit)
		if waits.Steps == 0 || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(waits.Step()):
		}
	}
}

func (m *Manager) changeOnce(ctx context.Context, edit func(data map[string][]byte) (bool, error)) error {
	found, err := m.get(ctx)
	missing := apierrors.IsNotFound(err)
	if missing {
		found = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: m.cfg.Name, Namespace: m.cfg.Namespace,
				Labels: map[string]string{"istio.io/config": "true", contract.ManagedByLabel: contract.ManagedByCA}},
			Type: corev1.SecretTypeOpaque,
		}
	} else if err != nil {
		return m.explain("read", err)
	}
	if found.Data == nil {
		found.Data = map[string][]byte{}
	}
	if changed, err := edit(found.Data); err != nil || !changed {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := m.api.CoreV1().Secrets(m.cfg.Namespace)
	if missing {
		_, err = client.Create(ctx, found, metav1.CreateOptions{FieldManager: contract.ManagedByCA})
	} else {
		_, err = client.Update(ctx, found, metav1.UpdateOptions{FieldManager: contract.ManagedByCA})
	}
	return m.explain("write", err)
}

func (m *Manager) get(ctx context.Context) (*corev1.Secret, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := m.api.CoreV1().Secrets(m.cfg.Namespace).Get(ctx, m.cfg.Name, metav1.GetOptions{})
	if err == nil && found.Type != corev1.SecretTypeOpaque && found.Type != "" {
		return nil, fmt.Errorf("it is of type %.80q, not %s; name another Secret", found.Type, corev1.SecretTypeOpaque)
	}
	return found, err
}

// explain says whose fault an error of a request is. The error wraps err, by which change sees conflicts.
func (m *Manager) explain(verb string, err error) error {
	if err == nil {
		return nil
	}
	fault, remedy := signer.Away, ""
	var retryAfter time.Duration
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		fault, remedy = signer.Refused, "; let the ca's service account get, create and update this Secret"
	case apierrors.IsTooManyRequests(err):
		fault = signer.Busy
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			retryAfter = time.Duration(seconds) * time.Second
		}
	case apierrors.IsNotFound(err):
		fault, remedy = signer.Refused, "; make the namespace, or correct it"
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err):
		fault = signer.Refused
	}
	return &signer.Error{Fault: fault, RetryAfter: retryAfter,
		Err: &apiError{text: fmt.Sprintf("%s Secret %s/%s: %.*s%s", verb, m.cfg.Namespace, m.cfg.Name, maxAnswer, err.Error(), remedy), err: err}}
}

// apiError is an error of the API server whose text is bounded.
type apiError struct {
	text string
	err  error
}

func (e *apiError) Error() string { return e.text }
func (e *apiError) Unwrap() error { return e.err }
