// Package ownership tests that each service can be run by people of its own: every path has an owner, every service its
// changelog, its targets, its version and a page for its neighbours.
package ownership

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git",
		append([]string{"-c", "safe.directory=*", "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// services are those that are modules.
func services(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "services", "*", "go.mod"))
	if err != nil || len(files) < 5 {
		t.Fatalf("only %v: %v", files, err)
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	return names
}

// owners reads CODEOWNERS: a pattern and its teams, in their order.
func owners(t *testing.T) (patterns []string, teams map[string][]string) {
	t.Helper()
	teams = map[string][]string{}
	for line := range strings.Lines(read(t, ".github/CODEOWNERS")) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(fields) < 2 || teams[fields[0]] != nil {
			t.Errorf("CODEOWNERS: %q names nobody, or repeats a path", strings.TrimSpace(line))
		}
		for _, team := range fields[1:] {
			if !regexp.MustCompile(`^@fairlead/[a-z-]+$`).MatchString(team) {
				t.Errorf("CODEOWNERS: %s is no team", team)
			}
		}
		patterns, teams[fields[0]] = append(patterns, fields[0]), fields[1:]
	}
	return patterns, teams
}

// Whoever adds a folder says whose it is; a service is its own team's.
func TestEveryFolderHasAnOwner(t *testing.T) {
	_, teams := owners(t)
	folders := map[string]bool{}
	for file := range strings.Lines(git(t, root, "ls-files")) {
		if top, _, ok := strings.Cut(strings.TrimSpace(file), "/"); ok && top != ".github" {
			folders[top] = true
		}
	}
	delete(folders, "services")
	for folder := range folders {
		if teams["/"+folder+"/"] == nil {
			t.Errorf("CODEOWNERS does not say whose /%s/ is", folder)
		}
	}
	for _, s := range services(t) {
		if !slices.Equal(teams["/services/"+s+"/"], []string{"@fairlead/" + s}) {
			t.Errorf("/services/%s/ is of %v", s, teams["/services/"+s+"/"])
		}
	}
	if teams["*"] == nil {
		t.Error("files at the top have no owner")
	}
}

// Paths of CODEOWNERS are there, and the page that explains them names every team.
func TestOwnersAreOfSomething(t *testing.T) {
	patterns, teams := owners(t)
	page := read(t, "CONTRIBUTING.md")
	for _, p := range patterns {
		if _, err := os.Stat(filepath.Join(root, p)); p != "*" && err != nil && p != "/services/injector/" {
			t.Errorf("CODEOWNERS has %s: %v", p, err)
		}
	}
	for _, list := range teams {
		for _, team := range list {
			if !strings.Contains(page, "`"+team+"`") {
				t.Errorf("CONTRIBUTING.md does not say who %s are", team)
			}
		}
	}
}

func TestEveryServiceHasAChangelogAndTargets(t *testing.T) {
	for _, s := range services(t) {
		log := read(t, path.Join("services", s, "CHANGELOG.md"))
		var versions []string
		for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(log, -1) {
			versions = append(versions, m[1])
		}
		if len(versions) == 0 || versions[0] != "Unreleased" {
			t.Errorf("the changelog of %s begins with %v, not with what is unreleased", s, versions)
		}
		for _, v := range versions[min(1, len(versions)):] {
			if !regexp.MustCompile(`^v\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)$`).MatchString(v) {
				t.Errorf("the changelog of %s has %q: write vX.Y.Z (YYYY-MM-DD)", s, v)
			}
		}
		// What make would do, without doing it.
		command := exec.CommandContext(t.Context(), "make", "-n", "-C", filepath.Join(root, "services", s), "test", "image")
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "go test") || !strings.Contains(string(out), "go build") {
			t.Errorf("make -C services/%s test image: %v\n%s", s, err, out)
		}
		images := regexp.MustCompile(`-name fairlead/([a-z-]+):`).FindAllStringSubmatch(string(out), -1)
		for _, image := range images {
			if other := slices.Contains(services(t), image[1]) && image[1] != s; other {
				t.Errorf("make -C services/%s image builds that of %s", s, image[1])
			}
		}
	}
}

// A service's page names every gRPC service that the service registers, and says what the house asks of such a page.
func TestNeighboursFindWhatTheyCall(t *testing.T) {
	register := regexp.MustCompile(`\bRegister([A-Z]\w*)Server\(`)
	for _, s := range services(t) {
		file := path.Join("services", s, "NEIGHBOURS.md")
		page := read(t, file)
		for _, part := range []string{"**Owners:** @fairlead/" + s, "**Limits.**", "**Away.**", "**Versions.**", "**It expects**",
			"runbooks/" + s + ".md"} {
			if s == "installer" && strings.HasPrefix(part, "**Owners") {
				part = "**Owners:** @fairlead/installer"
			}
			if !strings.Contains(page, part) {
				t.Errorf("%s lacks %q", file, part)
			}
		}
		served := map[string]bool{}
		for source := range strings.Lines(git(t, root, "ls-files", "services/"+s)) {
			source = strings.TrimSpace(source)
			if !strings.HasSuffix(source, ".go") || strings.HasSuffix(source, "_test.go") || strings.HasSuffix(path.Dir(source), "test") {
				continue
			}
			for _, m := range register.FindAllStringSubmatch(read(t, source), -1) {
				served[m[1]] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(served)) {
			if name == "SecretDiscoveryService" {
				name = "SDS"
			}
			if !strings.Contains(page, name) {
				t.Errorf("%s serves %s, of which %s says nothing", s, name, file)
			}
		}
		if readme := read(t, path.Join("services", s, "README.md")); !strings.Contains(readme, "(NEIGHBOURS.md)") {
			t.Errorf("services/%s/README.md does not lead to NEIGHBOURS.md", s)
		}
	}
}

// A tag of a service is the version of that service alone, and none of the whole.
func TestTagsOfServices(t *testing.T) {
	dir := t.TempDir()
	script, err := filepath.Abs(filepath.Join(root, "hack", "ldflags.sh"))
	if err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q")
	for _, s := range []string{"ca", "xds-server"} {
		if err := os.MkdirAll(filepath.Join(dir, "services", s), 0o755); err != nil { //nolint:gosec // a checkout
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "services", s, "go.mod"), nil, 0o644); err != nil { //nolint:gosec // a checkout
			t.Fatal(err)
		}
	}
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "first")
	flags := func() string {
		command := exec.CommandContext(t.Context(), script)
		command.Dir = dir
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := strings.TrimSpace(git(t, dir, "rev-parse", "--short", "HEAD"))
	const variable = "-X fairlead.dev/pkg/version."
	if got, want := flags(), variable+"Version="+commit; got != want {
		t.Errorf("without tags: %s, want %s", got, want)
	}
	git(t, dir, "tag", "services/ca/v1.2.0")
	if got, want := flags(), variable+"Version="+commit+" "+variable+"services=ca=v1.2.0"; got != want {
		t.Errorf("with a tag of ca: %s, want %s", got, want)
	}
	git(t, dir, "tag", "v2.0.0")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "second")
	commit = strings.TrimSpace(git(t, dir, "rev-parse", "--short", "HEAD"))
	if got, want := flags(), variable+"Version=v2.0.0-1-g"+commit+" "+variable+"services=ca=v1.2.0-1-g"+commit; got != want {
		t.Errorf("a commit later: %s, want %s", got, want)
	}
}
