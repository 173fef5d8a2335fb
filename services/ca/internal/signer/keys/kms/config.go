package kms

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of key stores.
const (
	PKCS11   = "pkcs11"
	AWSKMS   = "awskms"
	CloudKMS = "cloudkms"
	AzureKMS = "azurekms"
)

const (
	defaultTimeout = 5 * time.Second
	maxTimeout     = time.Minute
	// HelperName is the name of the helper program.
	HelperName = "ca-kms"
)

// Config says where the keys are.
type Config struct {
	// Type is pkcs11, awskms, cloudkms or azurekms.
	Type string `json:"type"`
	// URI names the token or the account, in the form of the Smallstep KMS: "pkcs11:token=mesh", "cloudkms:",
	// "awskms:region=eu-west-1", "azurekms:vault=mesh". It has no PIN.
	URI string `json:"uri"`
	// Module is the path of the PKCS#11 module, a shared library of the token's vendor.
	Module string `json:"module,omitempty"`
	// PINFile has the PIN of the token's user. It is read for each login. Without it there is no login.
	PINFile string `json:"pinFile,omitempty"`
	// Prefix is what the names of keys begin with in the store: labels of PKCS#11, aliases of AWS, names in Azure. For
	// cloudkms it begins with "projects/P/locations/L/keyRings/R/cryptoKeys/".
	Prefix string `json:"prefix,omitempty"`
	// Shared is true if all replicas of the ca reach the same token. Clouds are shared without it.
	Shared bool `json:"shared,omitempty"`
	// Timeout bounds one operation but the making of a key; 5s if it is 0.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// Helper is the path of the program ca-kms; by default it is in the directory of the ca's own program.
	Helper string `json:"helper,omitempty"`
}

var (
	cloudPrefix = regexp.MustCompile(`^projects/[^/;?]+/locations/[^/;?]+/keyRings/[^/;?]+/cryptoKeys/[a-zA-Z0-9_-]*$`)
	plainPrefix = regexp.MustCompile(`^[a-zA-Z0-9_-]{0,64}$`)
)

// Check returns all that is wrong with the configuration.
func (c *Config) Check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch c.Type {
	case PKCS11, AWSKMS, CloudKMS, AzureKMS:
		errs = append(errs, c.checkURI())
	case "":
		add("type: is required; use %s, %s, %s or %s", PKCS11, AWSKMS, CloudKMS, AzureKMS)
	default:
		add("type: %.40q is unknown; use %s, %s, %s or %s", c.Type, PKCS11, AWSKMS, CloudKMS, AzureKMS)
	}
	if c.Type == PKCS11 {
		if c.Module == "" {
			add("module: is required; name the PKCS#11 module of the token's vendor, such as /usr/lib/softhsm/libsofthsm2.so")
		}
	}
	for _, path := range []struct {
		field, value string
		token        bool
	}{{"module", c.Module, true}, {"pinFile", c.PINFile, true}, {"helper", c.Helper, false}} {
		switch {
		case path.value == "":
		case path.token && c.Type != PKCS11:
			add("%s: is of type %s alone; remove it", path.field, PKCS11)
		case !filepath.IsAbs(path.value):
			add("%s: %.200q is relative; write the whole path", path.field, path.value)
		}
	}
	switch {
	case c.Type == CloudKMS && !cloudPrefix.MatchString(c.Prefix):
		add("prefix: %.200q is no beginning of a key's name; write projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/", c.Prefix)
	case c.Type != CloudKMS && !plainPrefix.MatchString(c.Prefix):
		add("prefix: %.200q may have letters, digits, - and _, at most 64", c.Prefix)
	}
	if t := c.Timeout.Duration; t < 0 || t > maxTimeout {
		add("timeout: %s is not between 0 and %s", t, maxTimeout)
	}
	return errors.Join(errs...)
}

// checkURI refuses URIs that would bring a PIN into a file that is not secret, and those of pkcs11 without a token. It
// quotes nothing of the URI, because somebody may have written a PIN there.
func (c *Config) checkURI() error {
	opaque, found := strings.CutPrefix(c.URI, c.Type+":")
	if !found {
		return fmt.Errorf("uri: must begin with %q", c.Type+":")
	}
	opaque, query, _ := strings.Cut(opaque, "?")
	values, err := url.ParseQuery(strings.ReplaceAll(opaque+"&"+query, ";", "&"))
	if err != nil {
		return fmt.Errorf("uri: has attributes that are not NAME=VALUE with ; between them; escape other characters as %%XX")
	}
	for _, secret := range []string{"pin-value", "pin-source", "pin-prompt"} {
		if values.Has(secret) {
			return fmt.Errorf("uri: has %s; put the PIN into a file that only the ca can read, and name that in pinFile", secret)
		}
	}
	if c.Type != PKCS11 {
		return nil
	}
	if values.Has("module-path") {
		return errors.New("uri: has module-path; name the module in the field module")
	}
	selectors := 0
	for _, s := range []string{"token", "serial", "slot-id"} {
		if values.Get(s) != "" {
			selectors++
		}
	}
	if selectors != 1 {
		return errors.New("uri: must name the token by one of token, serial and slot-id, such as pkcs11:token=mesh")
	}
	return nil
}
