// Package meshrules judges the mesh configuration of an installation by config-watcher's own rules. They are not linked
// into this module's programs, because they bring every message of Envoy along; the program config-watcher is run.
package meshrules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/local/programs"
)

// timeout bounds one run of the program, which takes a tenth of a second.
const timeout = 20 * time.Second

// By returns a judge that runs the config-watcher that finder finds. Where there is none, every verdict has a warning
// that says so. It returns nil for a package that does not install config-watcher: what that one's mesh refuses is not
// known.
func By(finder programs.Finder, pkg *profile.Package) install.MeshJudge {
	if pkg.Component("configWatcher") == nil {
		return nil
	}
	return func(text []byte) (install.MeshVerdict, error) {
		watcher, err := finder.Program("config-watcher")
		missing := (*programs.NotFoundError)(nil)
		switch {
		case errors.As(err, &missing):
			const why = "its values are not judged by config-watcher's rules, because the program config-watcher is neither beside fairlead nor " +
				"in PATH"
			return install.MeshVerdict{Warnings: []install.MeshFinding{{Message: why}}}, nil
		case err != nil:
			return install.MeshVerdict{}, err
		}
		return judge(watcher, programs.BaseEnv(finder.Getenv), text)
	}
}

// judge runs `config-watcher validate`, which exits with process.ExitOK or process.ExitRefused.
func judge(watcher string, env []string, text []byte) (v install.MeshVerdict, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, watcher, "validate", "--output=json", "-") //nolint:gosec // our own program
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(text), &out, &said
	var exited *exec.ExitError
	if err := cmd.Run(); err != nil && (!errors.As(err, &exited) || exited.ExitCode() != process.ExitRefused) {
		return v, fmt.Errorf("%s validate: %w: %s", watcher, err, bytes.TrimSpace(said.Bytes()))
	}
	var verdicts struct {
		Objects []struct{ Errors, Warnings []install.MeshFinding }
	}
	if err := json.Unmarshal(out.Bytes(), &verdicts); err != nil {
		return v, fmt.Errorf("%s validate answers with what is no JSON: %w; do both programs have one version?", watcher, err)
	}
	for _, o := range verdicts.Objects {
		v.Errors, v.Warnings = append(v.Errors, o.Errors...), append(v.Warnings, o.Warnings...)
	}
	return v, nil
}
