package cacerts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/catest"
)

// crlSets are good sets with lists of revoked certificates. This package takes all of them.
func crlSets(t testing.TB) map[string]texts {
	t.Helper()
	p, other := newPlug(t), newPlug(t)
	good := p.crls(t)
	now := time.Now()
	var expired []byte
	for _, ca := range []*catest.CA{p.issuing, p.middle, p.root} {
		expired = append(expired, ca.CRL(t, now.Add(-2*time.Hour), now.Add(-time.Hour))...)
	}
	all := map[string]texts{}
	for name, content := range map[string][]byte{
		"complete": good, "malformed": []byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), "empty": {}, "expired": expired,
		"one missing": p.root.CRL(t, now.Add(-time.Hour), now.Add(time.Hour)), "of a foreign issuer": slices.Concat(good, other.crls(t)),
	} {
		all["lists: "+name] = p.istio(t).with(texts{crlName: content})
	}
	return all
}

// TestIstiod gives every set to istiod. What it refuses is refused here, except for differences that are listed.
func TestIstiod(t *testing.T) {
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN is not set: run `make signers`, or set it to what `tools/build-cached.sh istio` prints")
	}
	taken := map[string]bool{}
	files := crlSets(t)
	for name := range files {
		taken[name] = true
	}
	for name, s := range sets(t) {
		taken[name], files[name] = len(s.want) == 0, s.files
	}
	for name := range differences {
		if _, ok := files[name]; !ok {
			t.Errorf("a difference in %q, which is no set", name)
		}
	}
	var mu sync.Mutex
	said := map[string]error{}
	t.Run("ask", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				err := askIstiod(t, bin, write(t, files[name]))
				mu.Lock()
				defer mu.Unlock()
				said[name] = err
			})
		}
	})
	for _, name := range slices.Sorted(maps.Keys(said)) {
		istiods := said[name] == nil
		d, listed := differences[name]
		switch {
		case istiods == taken[name] && listed:
			t.Errorf("%s: both agree, and a difference is listed", name)
		case istiods != taken[name] && !listed:
			t.Errorf("%s: this package takes it: %t; istiod: %v", name, taken[name], said[name])
		case listed && d.laxer != taken[name]:
			t.Errorf("%s: the difference is the other way round; istiod: %v", name, said[name])
		case !istiods && said[name].Error() == "":
			t.Errorf("%s: istiod ended without a word", name)
		}
	}
}

var (
	// refused is what istiod says of a directory that it does not take.
	refused = regexp.MustCompile(`(?m)^Error: failed to create discovery service: failed to create CA: (.*)$`)
	// passed is what it logs after it has made its CA.
	passed = regexp.MustCompile(`\tinitializing controllers\n`)
)

// askIstiod starts istiod without Kubernetes and returns why it does not take a directory, nil if it does. It makes its
// CA first; what it does afterwards without Kubernetes is not waited for.
func askIstiod(t *testing.T, bin, dir string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const anyPort = "127.0.0.1:0"
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pilot-discovery"), "discovery", "--registries", "Mock", //nolint:gosec // a tool of the tests
		"--configDir", t.TempDir(), "--httpAddr", anyPort, "--grpcAddr", anyPort, "--secureGRPCAddr", anyPort, "--monitoringAddr", anyPort,
		"--httpsAddr", anyPort, "--ctrlz_port", "0")
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"POD_NAMESPACE=istio-system", "POD_NAME=istiod", "ROOT_CA_DIR=" + dir, "PILOT_ENABLE_CA_CRL=true", "HOME=" + cmd.Dir}
	out, err := cmd.CombinedOutput()
	text := string(out)
	var exited *exec.ExitError
	switch found := refused.FindStringSubmatch(text); {
	case found != nil:
		return errors.New(found[1])
	case passed.MatchString(text):
		return nil
	case errors.As(err, &exited):
		t.Fatalf("istiod ended early: %v\n%s", err, text[max(0, len(text)-2000):])
	}
	return fmt.Errorf("istiod said neither yes nor no: %w\n%s", err, strings.TrimSpace(text))
}
