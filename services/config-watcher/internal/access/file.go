package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/config-watcher/internal/kinds"
)

// Verbs of the configuration API.
const (
	Get    = "get"
	List   = "list"
	Watch  = "watch"
	Create = "create"
	Update = "update"
	Patch  = "patch"
	Delete = "delete"
)

// Roles.
const (
	Viewer = "viewer"
	Editor = "editor"
	Admin  = "admin"
)

// Verbs lists all verbs, sorted.
func Verbs() []string { return []string{Create, Delete, Get, List, Patch, Update, Watch} }

// verbsOf are the verbs of each role.
var verbsOf = map[string][]string{Viewer: {Get, List, Watch}, Editor: Verbs(), Admin: Verbs()}

// maxFileBytes bounds the file to some 10,000 roles.
const maxFileBytes = 1 << 20

// rolesFile is the content of the file of --roles-file.
type rolesFile struct {
	Roles []struct {
		Identities []string `json:"identities"`
		Namespaces []string `json:"namespaces"`
		Role       string   `json:"role,omitempty"`
		Verbs      []string `json:"verbs,omitempty"`
	} `json:"roles"`
}

// load reads a roles file. It returns the text and the grants by identity. Its error joins all mistakes in the file.
func load(path string, td spiffeid.TrustDomain) (string, map[string][]Grant, error) {
	text, err := fileio.Read(path, maxFileBytes)
	if errors.Is(err, fileio.ErrTooLarge) {
		return "", nil, fmt.Errorf("%w; give roles to fewer identities, in more namespaces each", err)
	}
	if err != nil {
		return "", nil, err
	}
	var parsed rolesFile
	if err := yaml.UnmarshalStrict(text, &parsed); err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	grants := map[string][]Grant{}
	var errs []error
	for i, r := range parsed.Roles {
		fail := func(field, format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s: roles[%d].%s: %s", path, i, field, fmt.Sprintf(format, args...)))
		}
		g := Grant{Role: r.Role, Verbs: slices.Sorted(slices.Values(r.Verbs)), Namespaces: slices.Sorted(slices.Values(r.Namespaces))}
		switch verbs, known := verbsOf[r.Role]; {
		case r.Role != "" && len(r.Verbs) > 0:
			fail("verbs", "given beside a role; give one of the two")
		case r.Role == "" && len(r.Verbs) == 0:
			fail("role", "missing; write viewer, editor or admin, or list verbs")
		case r.Role != "" && !known:
			fail("role", "%q is none; write viewer, editor or admin", r.Role)
		case known:
			g.Verbs = verbs
		}
		for _, v := range r.Verbs {
			if !slices.Contains(Verbs(), v) {
				fail("verbs", "%q is none; those are %s", v, strings.Join(Verbs(), ", "))
			}
		}
		if len(r.Namespaces) == 0 {
			fail("namespaces", "missing; list them, or write [\"*\"]")
		}
		if r.Role == Admin && !slices.Equal(r.Namespaces, []string{everywhere}) {
			fail("namespaces", "an admin is one of the whole mesh; write [\"*\"], or role editor")
		}
		for _, ns := range r.Namespaces {
			if ns == kinds.MeshNamespace {
				fail("namespaces", "objects of %s hold for the whole mesh; write [\"*\"]", ns)
			}
		}
		if len(r.Identities) == 0 {
			fail("identities", "missing; list them as <namespace>/<service account>, or as SPIFFE URIs")
		}
		for _, name := range r.Identities {
			identity, err := IdentityOf(name, td)
			if err != nil {
				fail("identities", "%v", err)
				continue
			}
			grants[identity] = append(grants[identity], g)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return "", nil, err
	}
	return string(text), grants, nil
}

// IdentityOf returns the SPIFFE URI of "<namespace>/<service account>" in the trust domain. It also accepts the SPIFFE
// URI of a workload.
func IdentityOf(name string, td spiffeid.TrustDomain) (string, error) {
	if _, _, ok := auth.ParseWorkload(name); ok {
		return name, nil
	}
	namespace, account, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(account, "/") {
		return "", fmt.Errorf("%q is neither <namespace>/<service account> nor the SPIFFE URI of a workload", name)
	}
	id, err := auth.WorkloadID(td, namespace, account)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}
