-- +goose Up
-- A move whose new place is lost after the switch goes back to what the old place still has. Few rows: nothing is locked for long.
ALTER TABLE tenant_moves
    ADD COLUMN clearing_at timestamptz, -- from then on the old place is no place any more
    ADD COLUMN returned_at timestamptz; -- the tenant was given back to the old place, and the move is to be undone
