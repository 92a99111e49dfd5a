package sim

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"go.uber.org/zap"
)

// findImage finds an image of the provider by name or id, or a snapshot by id: snapshots have no name.
func (s *Sim) findImage(idOrName string) (schema.Image, bool) {
	for _, i := range images {
		if *i.Name == idOrName || strconv.FormatInt(i.ID, 10) == idOrName {
			return i, true
		}
	}
	if id, err := strconv.ParseInt(idOrName, 10, 64); err == nil {
		if i, ok := s.st.Snapshots[id]; ok && i.Status == "available" {
			return *i, true
		}
	}
	return schema.Image{}, false
}

// snapshotID is the id of an image that is a snapshot or a backup; 0 for others.
func snapshotID(i schema.Image) int64 {
	if i.Type == "snapshot" || i.Type == "backup" {
		return i.ID
	}
	return 0
}

func (s *Sim) imageKind() *kind[schema.Image] {
	k := &kind[schema.Image]{
		sim: s, one: "image", many: "images", title: "image", all: s.st.Snapshots, fixed: images,
		show: func(i *schema.Image) item {
			return item{
				id: i.ID, name: valueOf(i.Name), status: i.Status, labels: i.Labels, created: *i.Created,
				filters: map[string]string{
					"type": i.Type, "architecture": i.Architecture,
					"bound_to": number(valueOf(i.BoundTo)),
				}, body: i,
			}
		},
		labels:    func(i *schema.Image) *map[string]string { return &i.Labels },
		protected: func(i *schema.Image) *bool { return &i.Protection.Delete },
		update:    s.updateImage,
		remove:    func(i *schema.Image) (any, error) { s.dropSnapshot(i.ID); return nil, nil },
	}
	k.actions = map[string]action[schema.Image]{"change_protection": func(r *http.Request, i *schema.Image) (any,
		error,
	) {
		if i.Type != "snapshot" {
			return nil, invalid("only snapshots can be protected", "delete")
		}
		return k.protect(r, i)
	}}
	return k
}

// updateImage makes a backup a snapshot if asked for: it is billed then, and stays when its
// server goes.
func (s *Sim) updateImage(i *schema.Image, c changes) error {
	if c.Type != nil && *c.Type != "snapshot" {
		return invalid("type must be snapshot", "type")
	}
	if c.Type != nil && i.Type == "backup" {
		i.Type, i.BoundTo = "snapshot", nil
		s.billImage(i)
	}
	replace(&i.Description, c.Description)
	return nil
}

const (
	imageGB      = 2.5   // what any image has, compressed
	imageMonthly = 0.011 // the price of a GB in euros
)

func (s *Sim) billImage(i *schema.Image) {
	s.st.open(LedgerEntry{
		Kind: "image", ID: i.ID, Name: i.Description, Labels: i.Labels,
		Monthly: imageMonthly * imageGB,
	})
}

// dropSnapshot deletes a snapshot. Its copy is deleted after its last reader.
func (s *Sim) dropSnapshot(id int64) {
	delete(s.st.Snapshots, id)
	s.st.close("image", id)
	dir := s.snapshotDir(id)
	_ = os.Rename(dir, dir+".gone")
	s.work.Add(1)
	go func() { defer s.work.Done(); _ = os.RemoveAll(dir + ".gone") }()
}

// createImage copies a server's disk. The provider also copies running servers, and warns that the copy is then likely
// to be inconsistent: here it is refused, to prevent mistakes.
func (s *Sim) createImage(r *http.Request, srv *server) (any, error) {
	var req schema.ServerActionCreateImageRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	typ := "snapshot"
	replace(&typ, req.Type)
	labels, err := labelsOf(req.Labels)
	switch {
	case err != nil:
		return nil, err
	case typ != "snapshot" && typ != "backup":
		return nil, invalid("type must be snapshot or backup", "type")
	case typ == "backup" && srv.BackupWindow == nil:
		return nil, invalid("backups are not enabled for this server", "type")
	case srv.Status != "off":
		return nil, &apiError{
			status: 423, code: "locked",
			message: "a snapshot of a running server would be inconsistent; power it off first",
		}
	}
	i := &schema.Image{
		ID: s.st.id(), Status: "creating", Type: typ, Description: srv.Name, DiskSize: float32(srv.PrimaryDiskSize),
		Created: new(time.Now().UTC()), CreatedFrom: &schema.ImageCreatedFrom{ID: srv.ID, Name: srv.Name},
		OSFlavor: srv.Image.OSFlavor, OSVersion: srv.Image.OSVersion, Architecture: srv.Image.Architecture,
		Labels: labels,
	}
	if req.Description != nil {
		i.Description = *req.Description
	}
	s.st.Snapshots[i.ID] = i
	if typ == "backup" {
		i.BoundTo = &srv.ID
		s.dropBackups(srv.ID, backupSlots)
	} else {
		s.billImage(i)
	}
	body := *i
	action := s.act("create_image", s.cfg.Profile.Action, func() *schema.ActionError {
		if f, ok := s.hostFault("create_image_fails", srv.Name); ok {
			i.Status = "unavailable"
			return &schema.ActionError{Code: f.code("action_failed"), Message: "creating the image failed"}
		}
		s.copyDisk(srv, i, imageGB)
		return nil
	}, serverRef(srv.ID), schema.ActionResourceReference{ID: i.ID, Type: "image"})
	return map[string]any{"action": action, "image": body}, nil
}

func (s *Sim) snapshotDir(id int64) string {
	return filepath.Join(s.cfg.StateDir, "images", fmt.Sprint(id))
}

// copyDisk makes a snapshot of a server that is off. Call it with the lock held.
func (s *Sim) copyDisk(srv *server, i *schema.Image, gigabytes float32) {
	host, before := s.newHost(srv, hostFaults{}), s.last[srv.ID]
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		if before != nil {
			<-before.done // its disk is in use until then
		}
		dir := s.snapshotDir(i.ID)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = host.snapshot(dir)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, there := s.st.Snapshots[i.ID]; !there {
			_ = os.RemoveAll(dir)
			return
		}
		if err != nil {
			s.log.Error("snapshot failed", zap.Int64("server", srv.ID), zap.Error(err))
			i.Status = "unavailable"
		} else {
			i.Status, i.ImageSize = "available", &gigabytes
		}
		s.changed()
	}()
}

// copyTree copies files and directories. Special files have no place on a light host.
func copyTree(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return os.Mkdir(to, 0o755) // nothing was ever written
	}
	return os.CopyFS(to, os.DirFS(from))
}

// restoreDisk gives a server that was made from a snapshot its copy, once.
func (s *Sim) restoreDisk(srv *server, h host) error {
	s.mu.Lock()
	from := srv.From
	s.mu.Unlock()
	if from == 0 {
		return nil
	}
	if err := h.restore(s.snapshotDir(from)); err != nil {
		return fmt.Errorf("copy of snapshot %d: %w", from, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	srv.From = 0
	s.changed()
	return nil
}

// isBuilder recognizes the user_data of an image's builder.
func isBuilder(userData string) bool {
	return strings.Contains(userData, "/etc/prego-image/recipe.json")
}
