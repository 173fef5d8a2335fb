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
	"fairlead.dev/services/ca/internal/private"
)

// bundleState is the content of bundle.json: the last bundle numbered.
type bundleState struct {
	Generation uint64 `json:"generation"`
	SHA256     string `json:"sha256"`
}

// Generation numbers a trust bundle, given as sorted PEM texts: the last number if the bundle is the last one numbered
// in this directory, else the next number. So a number never stands for two bundles, across restarts too. It is the
// trustbundle.Numberer of the ca.
func Generation(ctx context.Context, disk fileio.FS, dir string, roots []string) (uint64, error) {
	unlock, err := private.Lock(ctx, filepath.Join(dir, lockName), 10*time.Second)
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
	return next.Generation, disk.Replace(path, append(text, '\n'))
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
		return state, fmt.Errorf("%s is not what the ca wrote (%w); restore it, or write {\"generation\": N} with N at least the last "+
			"generation served", path, err)
	}
	return state, nil
}
