// Package kinds knows every kind of signer: Parse reads the file that chooses one, Open makes it. A new kind is a field
// of Spec, or of a part of it, and a line in Open.
package kinds

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/cacerts"
	"fairlead.dev/services/ca/internal/signer/certmanager"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/istio"
	"fairlead.dev/services/ca/internal/signer/keys/directory"
	"fairlead.dev/services/ca/internal/signer/keys/kms"
	"fairlead.dev/services/ca/internal/signer/keys/secret"
	"fairlead.dev/services/ca/internal/signer/kubecsr"
	"fairlead.dev/services/ca/internal/signer/service"
	"fairlead.dev/services/ca/internal/signer/stepca"
	"fairlead.dev/services/ca/internal/signer/vault"
)

// Group and kind of the file.
const (
	APIVersion = "ca.fairlead.dev/v1"
	Kind       = "Signer"
)

// maxBytes bounds the file.
const maxBytes = 64 << 10

// Spec is a signer file. Exactly one of its signers is set. It has no secrets, only paths of files that have some.
type Spec struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Name is what people call the signer: in status, logs and metrics. It is a DNS label.
	Name string `json:"name"`

	// Root lets the ca sign leaves itself, with a root in --ca-dir.
	Root *Root `json:"root,omitempty"`
	// Intermediate lets the ca sign leaves itself, with an intermediate that a minter signs.
	Intermediate *Intermediate `json:"intermediate,omitempty"`
	// Service has leaves signed by a server of SignerService, Istio by another CA with Istio's API, StepCA by step-ca.
	Service *service.Config `json:"service,omitempty"`
	Istio   *istio.Config   `json:"istio,omitempty"`
	StepCA  *stepca.Config  `json:"stepCA,omitempty"`
	// Vault has leaves signed by a role of Vault's PKI secrets engine.
	Vault *vault.Config `json:"vault,omitempty"`
	// KubernetesCSR has leaves signed by whoever signs CertificateSigningRequests of a name.
	KubernetesCSR *kubecsr.Config `json:"kubernetesCSR,omitempty"`
	// CertManager has leaves signed by an issuer of cert-manager.
	CertManager *certmanager.Config `json:"certManager,omitempty"`
	// CACerts takes certificate and key from files, as Istio's Secret cacerts has them.
	CACerts *cacerts.Config `json:"caCerts,omitempty"`

	// Limits bound what the signer may cost the ca; for signers that another process is.
	Limits *Limits `json:"limits,omitempty"`
}

// Intermediate is a key of the ca with a certificate from a minter. Exactly one minter is set.
type Intermediate struct {
	// Keys hold the key. Exactly one is set.
	Keys Keys `json:"keys"`
	// Algorithm of the key, ECDSA-P256 by default.
	Algorithm signer.Algorithm `json:"algorithm,omitempty"`
	// TTL of the intermediate, 30 days by default. It is renewed at half of that.
	TTL metav1.Duration `json:"ttl,omitempty"`

	SelfSigned *SelfSigned `json:"selfSigned,omitempty"`
	// Vault has the intermediate signed by an issuer of Vault's PKI secrets engine.
	Vault *vault.MinterConfig `json:"vault,omitempty"`
}

// Keys hold keys. Exactly one field is set.
type Keys struct {
	Directory *directory.Config `json:"directory,omitempty"`
	Secret    *secret.Config    `json:"secret,omitempty"`
	// KMS is a PKCS#11 token or a cloud's key service, by the helper program ca-kms.
	KMS *kms.Config `json:"kms,omitempty"`
}

// SelfSigned is a root of the ca's own. Its key is with that of the intermediate.
type SelfSigned struct {
	// Algorithm of the root's key, ECDSA-P256 by default.
	Algorithm signer.Algorithm `json:"algorithm,omitempty"`
	// TTL of the root, ten years by default.
	TTL metav1.Duration `json:"ttl,omitempty"`
}

// Limits are those of package guard, with its defaults.
type Limits struct {
	InFlight int             `json:"inFlight,omitempty"`
	Waiting  int             `json:"waiting,omitempty"`
	Timeout  metav1.Duration `json:"timeout,omitempty"`
}

// Config is that of a guard.
func (l *Limits) config() guard.Config {
	if l == nil {
		return guard.Config{}
	}
	return guard.Config{InFlight: l.InFlight, Waiting: l.Waiting, Timeout: l.Timeout.Duration}
}

// Parse reads a signer file. Its error has everything that is wrong, with the fields' paths; the caller names the file.
func Parse(text []byte) (*Spec, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), maxBytes)
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil, errors.New("is empty; write a Signer into it (docs/guide/signers.md)")
	}
	var s Spec
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		return nil, fmt.Errorf("is no Signer: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return &s, nil
}

func (s *Spec) check() error {
	var errs []error
	if s.APIVersion != APIVersion || s.Kind != Kind {
		errs = append(errs, fmt.Errorf("apiVersion, kind: are %q and %q; write %s and %s", s.APIVersion, s.Kind, APIVersion, Kind))
	}
	if problems := validation.IsDNS1123Label(s.Name); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("name: %q: %s", s.Name, problems[0]))
	}
	parts := s.parts()
	errs = append(errs, one(parts))
	for name, part := range parts {
		if part != nil {
			errs = append(errs, within(name, part.Check()))
		}
	}
	if l := s.Limits; l != nil {
		if l.InFlight < 0 || l.Waiting < 0 || l.Timeout.Duration < 0 {
			errs = append(errs, errors.New("limits: a number is negative; leave it out for the default"))
		}
	}
	return errors.Join(errs...)
}

// part is a part of the file.
type part interface{ Check() error }

// parts are the signers by their fields; nil for one that is not set.
func (s *Spec) parts() map[string]part {
	return map[string]part{
		"root": set(s.Root), "intermediate": set(s.Intermediate), "caCerts": set(s.CACerts), "service": set(s.Service), "istio": set(s.Istio),
		"stepCA": set(s.StepCA), "vault": set(s.Vault), "kubernetesCSR": set(s.KubernetesCSR), "certManager": set(s.CertManager),
	}
}

// set is the part that a pointer leads to, and nil, not a part that is nil, for a nil pointer.
func set[T any, P interface {
	*T
	part
}](p P) part {
	if p == nil {
		return nil
	}
	return p
}

// Check returns everything that is wrong with the intermediate's part of the file.
func (i *Intermediate) Check() error {
	keys := map[string]part{"keys.directory": set(i.Keys.Directory), "keys.secret": set(i.Keys.Secret), "keys.kms": set(i.Keys.KMS)}
	minters := map[string]part{"selfSigned": set(i.SelfSigned), "vault": set(i.Vault)}
	errs := []error{one(keys), one(minters), algorithm("algorithm", i.Algorithm), lifetime("ttl", i.TTL)}
	for _, parts := range []map[string]part{keys, minters} {
		for name, part := range parts {
			if part != nil {
				errs = append(errs, within(name, part.Check()))
			}
		}
	}
	return errors.Join(errs...)
}

// Check returns everything that is wrong with the root's part of the file.
func (s *SelfSigned) Check() error {
	return errors.Join(algorithm("algorithm", s.Algorithm), lifetime("ttl", s.TTL))
}

// algorithms that keys can have.
var algorithms = []signer.Algorithm{signer.ECDSAP256, signer.ECDSAP384, signer.RSA2048, signer.RSA3072, signer.RSA4096}

func algorithm(field string, a signer.Algorithm) error {
	if a == "" || slices.Contains(algorithms, a) {
		return nil
	}
	return fmt.Errorf("%s: %q is unknown; use one of %v", field, a, algorithms)
}

func lifetime(field string, d metav1.Duration) error {
	if d.Duration == 0 || d.Duration >= time.Minute {
		return nil
	}
	return fmt.Errorf("%s: %s is shorter than a minute", field, d.Duration)
}

// one reports unless exactly one of the fields is set.
func one(parts map[string]part) error {
	var set, all []string
	for name, part := range parts {
		all = append(all, name)
		if part != nil {
			set = append(set, name)
		}
	}
	slices.Sort(all)
	slices.Sort(set)
	switch {
	case len(set) == 1:
		return nil
	case len(set) > 1:
		return fmt.Errorf("%s: are set together; leave one", strings.Join(set, ", "))
	case len(all) == 1:
		return fmt.Errorf("%s: is required", all[0])
	}
	return fmt.Errorf("none of %s is set; write one", strings.Join(all, ", "))
}

// within puts the path of a part before each of its problems.
func within(path string, err error) error {
	if err == nil {
		return nil
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // errors.Join's own value
		var out []error
		for _, e := range all.Unwrap() {
			out = append(out, within(path, e))
		}
		return errors.Join(out...)
	}
	return fmt.Errorf("%s.%w", path, err)
}
