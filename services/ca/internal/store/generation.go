package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/pkg/fileio"
)

// bundleState is bundle.json.
type bundleState struct {
	Generation uint64 `json:"generation"`
	SHA256     string `json:"sha256"`
}

// Generation numbers a trust bundle: the number it had when it was last served from this directory, or, if it is another bundle, the next one. So a
// generation never stands for two bundles, restarts included. The roots are in PEM and sorted.
func Generation(ctx context.Context, dir string, roots []string) (uint64, error) {
	unlock, err := lock(ctx, filepath.Join(dir, lockName), 10*time.Second)
	if err != nil {
		return 0, err
	}
	defer unlock()
	path := filepath.Join(dir, bundleName)
	last, err := readState(path)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256([]byte(strings.Join(roots, "")))
	digest := hex.EncodeToString(sum[:])
	if last.Generation > 0 && last.SHA256 == digest {
		return last.Generation, nil
	}
	next := bundleState{Generation: last.Generation + 1, SHA256: digest}
	text, err := json.Marshal(next)
	if err != nil {
		return 0, err
	}
	return next.Generation, fileio.Write(path, append(text, '\n'), 0o600)
}

func readState(path string) (bundleState, error) {
	var state bundleState
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return state, fmt.Errorf("%s is not what the ca wrote (%w); restore it, or write {\"generation\": N} with N at least the last generation served", path, err)
	}
	return state, nil
}
