package kuberequest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/proto/fairlead/contract"
)

// defaults is the Config of a signer file that says nothing of it.
var defaults = Config{
	Timeout: metav1.Duration{Duration: 10 * time.Second},
	Limits:  Limits{InFlight: 100, RequestsPerSecond: 150, Burst: 300},
}

// Bounds of Config. No ca looks after an object for longer than maxTimeout, which is well below the age of orphans.
const (
	minTimeout, maxTimeout = time.Second, time.Minute
	maxInFlight            = 1000
	maxRequests            = 5000
	maxProfiles            = 100
)

// Config is what every signer of this package's kind can be told. It is part of the signer file.
type Config struct {
	// Timeout is how long the ca waits for a certificate; 10 s if it is 0. A leaf is valid for as much less than asked
	// for.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// Limits protect the API server. Those that are 0 have defaults.
	Limits Limits `json:"limits,omitzero"`
}

// Limits of one ca's requests to the API server. A leaf costs two requests, three with approve, and an event of the
// watch for each of them and for the signer's.
type Limits struct {
	// InFlight is how many objects may exist at once; 100 if it is 0. Ten times as many requests wait for their turn.
	InFlight int `json:"inFlight,omitempty"`
	// RequestsPerSecond and Burst bound all requests; 150 and 300 if they are 0.
	RequestsPerSecond int `json:"requestsPerSecond,omitempty"`
	Burst             int `json:"burst,omitempty"`
}

// Check returns all that is wrong, each with its field and a remedy.
func (c Config) Check() error {
	var errs []error
	if d := c.Timeout.Duration; d != 0 && (d < minTimeout || d > maxTimeout) {
		errs = append(errs, fmt.Errorf("timeout: is %s; write %s to %s", d, minTimeout, maxTimeout))
	}
	for _, l := range []struct {
		name      string
		is, bound int
	}{
		{"inFlight", c.Limits.InFlight, maxInFlight}, {"requestsPerSecond", c.Limits.RequestsPerSecond, maxRequests},
		{"burst", c.Limits.Burst, maxRequests},
	} {
		if l.is < 0 || l.is > l.bound {
			errs = append(errs, fmt.Errorf("limits.%s: is %d; write 1 to %d, or leave it out", l.name, l.is, l.bound))
		}
	}
	return errors.Join(errs...)
}

// complete returns the Config with defaults for what is 0.
func (c Config) complete() Config {
	or := func(a *int, b int) {
		if *a == 0 {
			*a = b
		}
	}
	if c.Timeout.Duration == 0 {
		c.Timeout = defaults.Timeout
	}
	or(&c.Limits.InFlight, defaults.Limits.InFlight)
	or(&c.Limits.RequestsPerSecond, defaults.Limits.RequestsPerSecond)
	or(&c.Limits.Burst, max(defaults.Limits.Burst, c.Limits.RequestsPerSecond))
	return c
}

// Roots names the certificates that verify what a signer issues: one of a file, a ConfigMap and a Secret. They are read
// again every ten seconds; what a signer says of itself is never one of them.
type Roots struct {
	// File has them in PEM.
	File string `json:"file,omitempty"`
	// ConfigMap has them under the key root-cert.pem unless Key says otherwise.
	ConfigMap *Object `json:"configMap,omitempty"`
	// Secret is that of a cert-manager CA issuer; it has them under ca.crt unless Key says otherwise. Whoever may read
	// it may read the issuer's private key, too: a ConfigMap is better.
	Secret *Object `json:"secret,omitempty"`
}

// key is the same for the same source.
func (r Roots) key() string {
	if r.ConfigMap != nil {
		return fmt.Sprintf("configMap %+v", *r.ConfigMap)
	}
	if r.Secret != nil {
		return fmt.Sprintf("secret %+v", *r.Secret)
	}
	return "file " + r.File
}

// Object is an entry of a ConfigMap or Secret.
type Object struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Key       string `json:"key,omitempty"`
}

// Check returns all that is wrong with the field of this name. Secrets are allowed for signers that keep their root in
// one.
func (r Roots) Check(field string, secrets bool) error {
	given, kinds := 0, "file or configMap"
	if secrets {
		kinds = "file, configMap or secret"
	}
	var errs []error
	if r.File != "" {
		given++
	}
	for name, o := range map[string]*Object{"configMap": r.ConfigMap, "secret": r.Secret} {
		if o == nil {
			continue
		}
		given++
		at := field + "." + name
		if len(validation.IsDNS1123Label(o.Namespace)) > 0 {
			errs = append(errs, fmt.Errorf("%s.namespace: %q is no name of a namespace; write that of the %s", at, o.Namespace, name))
		}
		if len(validation.IsDNS1123Subdomain(o.Name)) > 0 {
			errs = append(errs, fmt.Errorf("%s.name: %q is no name of an object; write that of the %s", at, o.Name, name))
		}
		if o.Key != "" && len(validation.IsConfigMapKey(o.Key)) > 0 {
			errs = append(errs, fmt.Errorf("%s.key: %q cannot be a key; write the one that has the roots in PEM", at, o.Key))
		}
	}
	if r.ConfigMap != nil && r.ConfigMap.Name == contract.RootConfigMap {
		errs = append(errs, fmt.Errorf("%s.configMap.name: %s is what the ca itself writes for workloads; name one that the signer's "+
			"operator keeps", field, contract.RootConfigMap))
	}
	if r.Secret != nil && !secrets {
		errs = append(errs, fmt.Errorf("%s.secret: is for cert-manager's issuers alone; use %s", field, kinds))
	}
	if given != 1 {
		errs = append(errs, fmt.Errorf("%s: has %d sources, wanted one; name the signer's roots with %s, because what a signer says of itself "+
			"is not believed", field, given, kinds))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// CheckProfiles returns what is wrong with names of profiles and the namespaces that they are bound to.
func CheckProfiles[P any](profiles []P, of func(P) (name string, namespaces []string)) error {
	var errs []error
	if len(profiles) > maxProfiles {
		errs = append(errs, fmt.Errorf("profiles: has %d entries, the limit is %d", len(profiles), maxProfiles))
	}
	seen := map[string]bool{}
	for i, p := range profiles {
		name, namespaces := of(p)
		at := fmt.Sprintf("profiles[%d]", i)
		switch {
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			errs = append(errs, fmt.Errorf("%s.name: %q is no signer's name; write what workloads send as CertSigner "+
				"(ISTIO_META_CERT_SIGNER)", at, name))
		case seen[name]:
			errs = append(errs, fmt.Errorf("%s.name: %s is there twice; write its namespaces into one entry", at, name))
		}
		seen[name] = true
		if len(namespaces) == 0 {
			errs = append(errs, fmt.Errorf("%s.namespaces: is required; list the namespaces whose workloads may use %q, or \"*\" for all", at, name))
		}
		for j, n := range namespaces {
			if n != "*" && len(validation.IsDNS1123Label(n)) > 0 {
				errs = append(errs, fmt.Errorf("%s.namespaces[%d]: %q is no name of a namespace", at, j, n))
			}
		}
	}
	return errors.Join(errs...)
}
