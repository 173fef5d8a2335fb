package memory

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Names in the store's directory beside those of kinds.
const (
	// journalName is the file that describes a write of several objects until all of their files are in place, so that
	// a kill leaves the write whole or undone.
	journalName = "journal.json"
	// markName is the file that marks the directory as a store's.
	markName = "store.json"
	// damagedDir keeps damaged files after they were replaced.
	damagedDir = "damaged"
	// clusterDir is the directory of cluster-scoped objects. No namespace can have this name.
	clusterDir = "_cluster"
)

// maxName is the longest name of a file in bytes (NAME_MAX).
const maxName = 255

// relPath is the path of an object's file: <kind>.<group>/<namespace>/<name>.json. Every part is escaped, so that no
// name leads out of the directory; a part that is too long for a file name is shortened and ends with its hash.
func relPath(k object.Key) string {
	kind := k.Kind
	if k.Group != "" {
		kind += "." + k.Group
	}
	ns := escape(k.Namespace, "")
	if k.Namespace == "" {
		ns = clusterDir
	}
	return filepath.Join(escape(kind, ""), ns, escape(k.Name, ".json"))
}

// escape makes a file name of a text and a suffix. Only a shortened name contains "~".
func escape(text, ending string) string {
	name := strings.ReplaceAll(url.PathEscape(text), "~", "%7E")
	if len(name)+len(ending) > maxName {
		sum := sha256.Sum256([]byte(text))
		hash := "~" + hex.EncodeToString(sum[:])
		name = name[:maxName-len(ending)-len(hash)] + hash
	}
	return name + ending
}

// keyOf reads an object's key from its path, without parts that were shortened. It works for a damaged file too.
func keyOf(rel string) object.Key {
	var k object.Key
	parts := strings.Split(filepath.ToSlash(rel), "/")
	if len(parts) != 3 {
		return k
	}
	plain := func(s string) string {
		text, err := url.PathUnescape(s)
		if err != nil || strings.Contains(s, "~") {
			return ""
		}
		return text
	}
	k.Kind, k.Group, _ = strings.Cut(plain(parts[0]), ".")
	if parts[1] != clusterDir {
		k.Namespace = plain(parts[1])
	}
	k.Name = plain(strings.TrimSuffix(parts[2], ".json"))
	return k
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// savedDir is the store's directory in the last good state. Each --store-dir has its own.
func (s *Store) savedDir() string {
	dir := s.cfg.Dir
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return filepath.Join(Name, shortHash(dir))
}

func (s *Store) savedPath(rel string) string { return filepath.Join(s.savedDir(), rel) }
