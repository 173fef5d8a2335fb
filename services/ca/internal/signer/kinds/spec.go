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
	"fairlead.dev/services/ca/internal/signer/keys/directory"
	"fairlead.dev/services/ca/internal/signer/keys/secret"
	"fairlead.dev/services/ca/internal/signer/kubecsr"
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

	// Intermediate lets the ca sign leaves itself, with an intermediate that a minter signs.
	Intermediate *Intermediate `json:"intermediate,omitempty"`
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
}

// Keys hold keys. Exactly one field is set.
type Keys struct {
	Directory *directory.Config `json:"directory,omitempty"`
	Secret    *secret.Config    `json:"secret,omitempty"`
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
	errs = append(errs, one("", map[string]bool{
		"intermediate": s.Intermediate != nil, "caCerts": s.CACerts != nil, "kubernetesCSR": s.KubernetesCSR != nil,
		"certManager": s.CertManager != nil,
	}))
	if s.CACerts != nil {
		errs = append(errs, within("caCerts", s.CACerts.Check()))
	}
	if s.KubernetesCSR != nil {
		errs = append(errs, within("kubernetesCSR", s.KubernetesCSR.Check()))
	}
	if s.CertManager != nil {
		errs = append(errs, within("certManager", s.CertManager.Check()))
	}
	if i := s.Intermediate; i != nil {
		errs = append(errs, within("intermediate", i.check()))
	}
	if l := s.Limits; l != nil {
		if l.InFlight < 0 || l.Waiting < 0 || l.Timeout.Duration < 0 {
			errs = append(errs, errors.New("limits: a number is negative; leave it out for the default"))
		}
	}
	return errors.Join(errs...)
}

func (i *Intermediate) check() error {
	errs := []error{
		one("keys.", map[string]bool{"directory": i.Keys.Directory != nil, "secret": i.Keys.Secret != nil}),
		one("", map[string]bool{"selfSigned": i.SelfSigned != nil}),
		algorithm("algorithm", i.Algorithm),
		lifetime("ttl", i.TTL),
	}
	if i.Keys.Directory != nil {
		errs = append(errs, within("keys.directory", i.Keys.Directory.Check()))
	}
	if i.Keys.Secret != nil {
		errs = append(errs, within("keys.secret", i.Keys.Secret.Check()))
	}
	if i.SelfSigned != nil {
		errs = append(errs, algorithm("selfSigned.algorithm", i.SelfSigned.Algorithm), lifetime("selfSigned.ttl", i.SelfSigned.TTL))
	}
	return errors.Join(errs...)
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
func one(prefix string, fields map[string]bool) error {
	var set, all []string
	for name, is := range fields {
		all = append(all, prefix+name)
		if is {
			set = append(set, prefix+name)
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
