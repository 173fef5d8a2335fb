package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// spec describes an image.
type spec struct {
	name, user string
	created    time.Time
	arch       string
	entrypoint string
	files      map[string]entry
}

// entry is a file or a directory of the image.
type entry struct {
	mode int64
	data []byte
}

const directory = 0o40000

// passwd names uid 1337, because some programs look their user up.
const (
	passwd = "root:x:0:0:root:/:/sbin/nologin\nistio-proxy:x:1337:1337:Fairlead:/:/sbin/nologin\n"
	group  = "root:x:0:\nistio-proxy:x:1337:\n"
)

// addEntrypoint adds the binary, and sets the image's architecture to the binary's.
func (s *spec) addEntrypoint(host string) error {
	data, err := os.ReadFile(host)
	if err != nil {
		return err
	}
	info, err := inspect(data)
	if err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	if info.interpreter != "" {
		return fmt.Errorf("%s is dynamically linked (%s); build it with CGO_ENABLED=0", host, info.interpreter)
	}
	s.arch = info.arch
	s.entrypoint = "/usr/local/bin/" + filepath.Base(host)
	s.put("/tmp", entry{mode: directory | 0o1777})
	s.put("/etc/passwd", entry{mode: 0o644, data: []byte(passwd)})
	s.put("/etc/group", entry{mode: 0o644, data: []byte(group)})
	s.put(s.entrypoint, entry{mode: 0o755, data: data})
	return nil
}

// addFile adds a file, and the libraries and loader of a dynamic executable.
func (s *spec) addFile(host, image string) error {
	data, err := os.ReadFile(host)
	if err != nil {
		return err
	}
	info, err := os.Stat(host)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	s.put(image, entry{mode: mode, data: data})
	libraries, err := librariesOf(host, data, s.arch)
	if err != nil {
		return err
	}
	for _, p := range libraries {
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		s.put(p, entry{mode: 0o755, data: data})
	}
	return nil
}

// put adds an entry and its parent directories.
func (s *spec) put(p string, e entry) {
	if s.files == nil {
		s.files = map[string]entry{}
	}
	s.files[p] = e
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		if _, ok := s.files[dir]; !ok {
			s.files[dir] = entry{mode: directory | 0o755}
		}
	}
}

// imageConfig holds the fields of an OCI image configuration that are set.
type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       runConfig `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type runConfig struct {
	User       string
	Env        []string
	Entrypoint []string
	WorkingDir string
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// manifest is an element of a docker-archive's manifest.json.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// write writes the archive: a layer, the configuration with its digest, and the manifest that names both.
func (s *spec) write(w io.Writer) error {
	layer, err := s.layer()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(imageConfig{
		Created: s.created, Architecture: s.arch, OS: "linux",
		Config: runConfig{User: s.user, Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{s.entrypoint}, WorkingDir: "/"},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	list, err := json.Marshal([]manifest{{Config: "config.json", RepoTags: []string{s.name}, Layers: []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, file := range []struct {
		name string
		data []byte
	}{{"manifest.json", list}, {"config.json", config}, {"layer.tar", layer}} {
		if err := s.writeEntry(out, file.name, entry{mode: 0o644, data: file.data}); err != nil {
			return err
		}
	}
	return out.Close()
}

// layer returns the image's file system as a tar, sorted by path.
func (s *spec) layer() ([]byte, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	paths := slices.Sorted(maps.Keys(s.files))
	for _, p := range paths {
		if err := s.writeEntry(out, p[1:], s.files[p]); err != nil {
			return nil, err
		}
	}
	err := out.Close()
	return buffer.Bytes(), err
}

func (s *spec) writeEntry(out *tar.Writer, name string, e entry) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: e.mode & 0o7777, Size: int64(len(e.data)), ModTime: s.created, Format: tar.FormatPAX}
	if e.mode&directory != 0 {
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	}
	if err := out.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err := out.Write(e.data)
	return err
}
