package vault

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

// role is what the ca needs to know of a role of the PKI engine.
type role struct {
	// maxTTL is the longest life that it allows a leaf; 0 if it does not say.
	maxTTL time.Duration
	// settings are those as which it has to be written, each with the reason.
	settings []string
}

// readRole reads the answer of roles/ROLE.
func readRole(s *api.Secret) (*role, error) {
	if s == nil || s.Data == nil {
		return nil, errNoSecret
	}
	data, r := s.Data, &role{}
	r.maxTTL = time.Duration(max(0, min(number(data, "max_ttl"), maxLease))) * time.Second
	want := func(ok bool, setting, reason string) {
		if !ok {
			r.settings = append(r.settings, setting+" ("+reason+")")
		}
	}
	uris, err := texts(data, "allowed_uri_sans")
	if err != nil {
		return nil, err
	}
	usages, err := texts(data, "key_usage")
	if err != nil {
		return nil, err
	}
	kind := text(data, "key_type")
	want(len(uris) > 0, "allowed_uri_sans=spiffe://TRUST-DOMAIN/*", "it allows no URI, and a leaf is named by one")
	want(!flag(data, "use_csr_sans"), "use_csr_sans=false", "the ca decides names, and sends them beside the CSR")
	want(!flag(data, "use_csr_common_name"), "use_csr_common_name=false", "subjects of CSRs are the callers' words")
	want(!flag(data, "require_cn"), "require_cn=false", "leaves have no common name")
	want(kind == "any" || kind == "ec", "key_type=any", fmt.Sprintf("it takes only keys of type %q, and agents have ECDSA keys", kind))
	want(flag(data, "server_flag"), "server_flag=true", "leaves authenticate servers")
	want(flag(data, "client_flag"), "client_flag=true", "leaves authenticate clients")
	want(!flag(data, "code_signing_flag"), "code_signing_flag=false", "leaves sign no code")
	want(!flag(data, "email_protection_flag"), "email_protection_flag=false", "leaves protect no mail")
	want(slices.ContainsFunc(usages, func(u string) bool { return strings.EqualFold(u, "DigitalSignature") }),
		"key_usage=DigitalSignature", "TLS needs it")
	want(text(data, "not_after") == "", "not_after=", "it would replace the lifetime that the ca asks for")
	want(!flag(data, "generate_lease"), "generate_lease=false", "Vault would keep a lease for every leaf")
	return r, nil
}

// texts is list for fields whose number of entries an operator chooses.
func texts(data map[string]any, field string) ([]string, error) {
	values, ok := data[field].([]any)
	if !ok && data[field] != nil {
		return nil, fmt.Errorf("%s is no list", field)
	}
	var out []string
	for _, v := range values {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// allows returns why the role does not sign leaves of a mesh whose longest live for ttl; nil if it does.
func (r *role) allows(ttl time.Duration) error {
	settings := r.settings
	if r.maxTTL > 0 && r.maxTTL < ttl {
		settings = append(slices.Clone(settings),
			fmt.Sprintf("max_ttl=%ds (it allows %s, less than the mesh's %s)", int64(ttl.Seconds()), r.maxTTL, ttl))
	}
	if len(settings) == 0 {
		return nil
	}
	return errors.New("write it with " + strings.Join(settings, ", "))
}
